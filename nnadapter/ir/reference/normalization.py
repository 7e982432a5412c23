"""The meanings of normalizations and softmax."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, LIKE_INPUT, Example, OperationDoc, counting, tensor

EPSILON = "Added to the variance, under the square root."
"""Of normalizations by a variance."""
_CHANNELS = "[N, C, …]; the channels are the last axis if the layout says NHWC."

MEANINGS: Mapping[str, OperationDoc] = {
    "BATCH_NORMALIZATION": OperationDoc(
        summary="Every channel moved and scaled by statistics that training found.",
        formula="output = (input - mean[c]) / sqrt(variance[c] + epsilon) * scale[c] + bias[c]",
        inputs={
            "input": _CHANNELS,
            "scale": "[C].",
            "bias": "[C], what is added at the end.",
            "mean": "[C], what training found.",
            "variance": "[C], what training found: not the deviation.",
        },
        attributes={"epsilon": EPSILON},
        outputs=LIKE_INPUT,
        example=Example(
            (
                tensor([[1.0, 2.0], [3.0, 4.0]]),
                tensor([1.0, 10.0]),
                tensor([0.0, 1.0]),
                tensor([2.0, 3.0]),
                tensor([1.0, 4.0]),
            ),
            {"epsilon": 0.0},
        ),
        traps=(
            "Nothing is computed from the input: it is a scale and a shift per channel.",
            "Statistics may have another floating-point type than the input.",
            "fuse_batch_normalization folds it into the operation before it, or makes MUL and ADD of it.",
        ),
    ),
    "LAYER_NORMALIZATION": OperationDoc(
        summary="Every item brought to mean 0 and variance 1, over the last axes.",
        formula="output = (input - mean) / sqrt(variance + epsilon) * scale + bias\n"
        "mean, variance: over the axes from `axis` to the last; variance = mean of (input - mean)^2",
        inputs={
            "input": "Any rank.",
            "scale": "Broadcasts to the dimensions from `axis` on.",
            "bias": "Broadcasts to the dimensions from `axis` on; none adds nothing.",
        },
        attributes={"axis": f"The first of the axes that are normalized together. {AXIS}", "epsilon": EPSILON},
        outputs=LIKE_INPUT,
        example=Example(
            (tensor([[1.0, 3.0], [0.0, 4.0]]), tensor([1.0, 2.0]), tensor([0.0, 10.0])), {"axis": 1, "epsilon": 0.0}
        ),
        traps=(
            "The variance divides by the number of elements, not by one less.",
            "All axes from `axis` on are taken, not that one alone.",
            "It has one output: where ONNX's Mean or InvStdDev is read, the converter spells the node out in steps.",
        ),
    ),
    "INSTANCE_NORMALIZATION": OperationDoc(
        summary="Every channel of every item brought to mean 0 and variance 1.",
        formula="output = (input - mean[n, c]) / sqrt(variance[n, c] + epsilon) * scale[c] + bias[c]\n"
        "mean, variance: over the spatial axes",
        inputs={"input": _CHANNELS, "scale": "[C].", "bias": "[C]."},
        attributes={"epsilon": EPSILON},
        outputs=LIKE_INPUT,
        example=Example(
            (tensor([[[1.0, 3.0], [0.0, 4.0]]]), tensor([1.0, 2.0]), tensor([0.0, 10.0])), {"epsilon": 0.0}
        ),
        traps=(
            "The bias is not optional.",
            "The variance divides by the number of elements, not by one less.",
            "GroupNormalization becomes this operation between two RESHAPE, with a group in the place of a channel.",
        ),
    ),
    "LOCAL_RESPONSE_NORMALIZATION": OperationDoc(
        summary="Every element divided by a power of the sum of squares of its neighbors in other channels.",
        formula="output[n, c, …] = input[n, c, …] / (bias + alpha / size * sum of input[n, i, …]^2) ^ beta\n"
        "i from max(0, c - floor((size - 1) / 2)) to min(C - 1, c + floor(size / 2))",
        inputs={"input": _CHANNELS},
        attributes={
            "size": "How many channels are summed, 1 or more.",
            "alpha": "Factor of the mean of squares.",
            "beta": "The power.",
            "bias": "What is added before the power is taken.",
        },
        outputs=LIKE_INPUT,
        example=Example((tensor([[[[1.0]], [[2.0]], [[3.0]]]]),), {"size": 3, "alpha": 3.0, "beta": 1.0}),
        traps=(
            "alpha is divided by size. NNAPI's is not.",
            "At the border fewer channels are summed, and alpha is divided by size all the same.",
            "An even size reaches one channel further up than down.",
        ),
        flops="size + 5 for each element of the output",
    ),
    "SOFTMAX": OperationDoc(
        summary="Exponentials along an axis, divided by their sum.",
        formula="output[…, i, …] = exp(input[…, i, …]) / sum over j of exp(input[…, j, …])",
        inputs={"input": "The scores."},
        attributes={"axis": AXIS},
        outputs=LIKE_INPUT,
        example=Example((tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]),), {"axis": 1}),
        traps=(
            "Subtract the maximum before exp: scores of 100 overflow otherwise.",
            "Along one axis alone. ONNX's before opset 13 flattens all axes from its axis on: the converter reshapes.",
            "A row of nothing but -inf gives NaN.",
        ),
    ),
    "LOG_SOFTMAX": OperationDoc(
        summary="The logarithm of SOFTMAX.",
        formula="output[…, i, …] = input[…, i, …] - log(sum over j of exp(input[…, j, …]))",
        inputs={"input": "The scores."},
        attributes={"axis": AXIS},
        outputs=LIKE_INPUT,
        example=Example((counting(1, 3),), {"axis": 1}),
        traps=("Subtract the maximum before exp, and do not take the logarithm of SOFTMAX: it may be 0.",),
    ),
}
"""By operation."""
