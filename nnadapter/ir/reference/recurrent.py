"""The meanings of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, tensor

_LETTERS = "Steps T, batch B, features I, directions D (1 or 2), hidden units H."
_SEQUENCE = "[T, D, B, H]: the hidden state after every step; zeros behind the end of a sequence."
_HIDDEN = "[D, B, H]: the hidden state after the last step of each sequence."


def _inputs(gates: int, order: str) -> dict[str, str]:
    return {
        "input": f"[T, B, I]. {_LETTERS}",
        "weights": f"[D, {gates}H, I]; gates in the order {order}." if gates > 1 else "[D, H, I].",
        "recurrent_weights": f"[D, {gates}H, H]; gates in that order." if gates > 1 else "[D, H, H].",
        "bias": f"[D, {2 * gates}H]: those of the weights, then those of the recurrent weights; none: zeros.",
        "sequence_lengths": "[B], 0 to T: how many steps each sequence has; none: T.",
        "initial_hidden": "[D, B, H]: the hidden state before the first step; none: zeros.",
    }


def _attributes(functions: str) -> dict[str, str]:
    return {
        "direction": "`forward`: from step 0 on. `reverse`: from the last step on. `bidirectional`: both, D = 2,"
        " forward first.",
        "activations": f"Names with spaces between them, per direction: {functions}. Any of affine, elu, hard_sigmoid,"
        " leaky_relu, relu, scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu.",
        "activation_alpha": "One number per name in `activations`, or none if no function reads it.",
        "activation_beta": "The same for the second parameter.",
        "clip": "What a function is given is kept between -clip and clip.",
    }


_FUNCTIONS = (
    "alpha and beta: affine alpha * x + beta; scaled_tanh alpha * tanh(beta * x); hard_sigmoid max(0, min(1, alpha * x"
    " + beta)); thresholded_relu x if x >= alpha, else 0; leaky_relu and elu as the operations.",
    "Backwards, a sequence begins at its own last step, lengths[b] - 1. Results stand at the step that they belong to.",
    "Behind its length a sequence gives zeros, and its states stay.",
    "Dimensions are ONNX's layout 0: steps first.",
)
_ONE = (tensor([[[1.0]], [[2.0]]]), tensor([[[1.0]]]), tensor([[[0.5]]]))

MEANINGS: Mapping[str, OperationDoc] = {
    "LSTM": OperationDoc(
        summary="A layer of long short-term memory over whole sequences.",
        formula="per step, x = input[t], h and c the states; W, R, b, P: the gate's weights, recurrent weights, both"
        " biases added, peephole\n"
        "i = f(W_i x + R_i h + b_i + P_i * c)\n"
        "forget = f(W_f x + R_f h + b_f + P_f * c), or 1 - i with input_forget\n"
        "c' = forget * c + i * g(W_c x + R_c h + b_c)\n"
        "o = f(W_o x + R_o h + b_o + P_o * c')\n"
        "h' = o * h_function(c')",
        inputs={
            **_inputs(4, "input, output, forget, cell"),
            "initial_cell": "[D, B, H]: the cell state before the first step; none: zeros.",
            "peepholes": "[D, 3H]: of the input, output and forget gate, element by element; none: zeros.",
        },
        attributes={
            **_attributes("gates f, cell g, hidden"),
            "input_forget": "True: the forget gate is one less the input gate.",
        },
        outputs={
            "output": _SEQUENCE,
            "hidden": _HIDDEN,
            "cell": "[D, B, H]: the cell state after the last step of each sequence.",
        },
        example=Example((_ONE[0], tensor([[[1.0]] * 4]), tensor([[[0.5]] * 4]))),
        traps=(
            "Gates are input, output, forget, cell. PyTorch's order is input, forget, cell, output.",
            "The peephole of the output gate sees the new cell state, the others the old one.",
            "clip holds for f and g, not for the hidden function.",
            *_FUNCTIONS,
        ),
        flops="(4 * (2I + 2H + 2) + 10) for each element of the output",
    ),
    "GRU": OperationDoc(
        summary="A layer of gated recurrent units over whole sequences.",
        formula="per step, x = input[t], h the state; W, R: the gate's weights, bw and br: its two biases\n"
        "z = f(W_z x + R_z h + bw_z + br_z)\n"
        "r = f(W_r x + R_r h + bw_r + br_r)\n"
        "linear_before_reset false: n = g(W_h x + R_h (r * h) + br_h + bw_h)\n"
        "linear_before_reset true:  n = g(W_h x + r * (R_h h + br_h) + bw_h)\n"
        "h' = (1 - z) * n + z * h",
        inputs=_inputs(3, "update, reset, hidden"),
        attributes={
            **_attributes("gates f, hidden g"),
            "linear_before_reset": "True: the reset gate is applied behind the product, as PyTorch and cuDNN do.",
        },
        outputs={"output": _SEQUENCE, "hidden": _HIDDEN},
        example=Example((_ONE[0], tensor([[[1.0]] * 3]), tensor([[[0.5]] * 3]))),
        traps=("Gates are update, reset, hidden. PyTorch's order is reset, update, new.", *_FUNCTIONS),
        flops="(3 * (2I + 2H + 2) + 7) for each element of the output",
    ),
    "RNN": OperationDoc(
        summary="A plain recurrent layer over whole sequences.",
        formula="h' = f(W x + R h + b), b: both biases added",
        inputs=_inputs(1, ""),
        attributes=_attributes("hidden f"),
        outputs={"output": _SEQUENCE, "hidden": _HIDDEN},
        example=Example(_ONE, {"direction": "reverse", "activations": "relu"}),
        traps=_FUNCTIONS,
        flops="(2I + 2H + 3) for each element of the output",
    ),
}
"""By operation."""
