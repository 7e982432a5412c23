"""Recurrent layers: the products with the inputs for all steps at once, then step by step what depends on the last.

Sizes: steps T, batch B, hidden units H, gates G. A cell computes one step of one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS
from nnadapter.drivers.fake_npu.kernels.gates import Gate, bind_gate, gates_of
from nnadapter.drivers.fake_npu.kernels.kernel import (
    KernelArguments,
    NumpyKernel,
    Outline,
    Run,
    ScratchRule,
    in_sequence,
)
from nnadapter.ir.operand import Array

States = tuple[Array, ...]
"""[B, H] each: hidden, and cell for LSTM."""
Step = Callable[[Array, States, States], None]
"""Products of one step [B, G * H], states before, places for the states after, which may be those before for cells."""
Inputs = Mapping[str, Array]
"""The layer's inputs by role; optional ones that are absent are not in it."""
MakeCell = Callable[[Inputs, int, Sequence[Gate], Sequence[Array], Parameters], Step]
"""Inputs, direction, its functions, scratch (product [B, G * H], gates [G, B, H], spare [B, H], block), parameters."""
MakeBias = Callable[[Array, int, Parameters], Array]
"""Bias of one direction [2 * G * H], hidden units, parameters -> what is added to the products [G * H]."""


def _scratch(gates: int) -> ScratchRule:
    def wanted(outline: Outline) -> tuple[TensorType, ...]:
        """Products of all steps, what a cell needs, and states before they are known to be valid."""
        (steps, _, batch, hidden), dtype = outline.outputs[0].dimensions, outline.inputs[0].dtype
        state = TensorType(dtype, (batch, hidden))
        return (
            TensorType(dtype, (steps, batch, gates * hidden)),
            TensorType(dtype, (batch, gates * hidden)),
            TensorType(dtype, (gates, batch, hidden)),
            state,
            TensorType(dtype, (min(gates * batch * hidden, BLOCK_ELEMENTS),)),
            *(state for _ in outline.outputs[1:]),
        )

    return wanted


def _bind(make_cell: MakeCell, make_bias: MakeBias) -> Callable[[KernelArguments], Run]:
    def bind(call: KernelArguments) -> Run:
        inputs: Inputs = dict(zip(call.parameters["roles"], call.inputs, strict=True))
        directions = len(inputs["weights"])
        steps: list[Run] = []
        for index, gates in enumerate(gates_of(call.parameters, directions)):
            cell = make_cell(inputs, index, gates, call.scratch[1:5], call.parameters)
            backwards = index == 1 or call.parameters["direction"] == "reverse"
            steps.append(_bind_products(inputs, index, call, make_bias))
            steps.append(_bind_start(inputs, index, call.outputs[1:]))
            sweep = _bind_ragged if "sequence_lengths" in inputs else _bind_sweep
            steps.append(sweep(inputs, index, call, cell, backwards))
        return in_sequence(steps)

    return bind


def _bind_products(inputs: Inputs, index: int, call: KernelArguments, make_bias: MakeBias) -> Run:
    """The inputs of all steps times the weights, plus what of the bias does not depend on states."""
    products, x, weights = call.scratch[0], inputs["input"], inputs["weights"][index]
    rows, source = products.reshape(-1, len(weights)), x.reshape(-1, x.shape[-1])
    bias = inputs["bias"][index] if "bias" in inputs else None
    hidden = inputs["recurrent_weights"].shape[-1]

    def run() -> None:
        np.matmul(source, weights.T, rows)
        if bias is not None:
            np.add(rows, make_bias(bias, hidden, call.parameters), rows)

    return run


def _bind_start(inputs: Inputs, index: int, states: Sequence[Array]) -> Run:
    """The last states, which are outputs, begin as the first ones."""
    initial_states = (inputs.get("initial_hidden"), inputs.get("initial_cell"))
    pairs = [
        (state[index], 0 if first is None else first[index])
        for state, first in zip(states, initial_states, strict=False)
    ]

    def run() -> None:
        for state, first in pairs:
            np.copyto(state, first)

    return run


def _order(steps: int, backwards: bool) -> range:
    return range(steps - 1, -1, -1) if backwards else range(steps)


def _bind_sweep(inputs: Inputs, index: int, call: KernelArguments, cell: Step, backwards: bool) -> Run:
    """All steps of sequences of one length; the hidden state is written where the output is."""
    (output, last, *cells), products = call.outputs, call.scratch[0]
    carried = tuple(state[index] for state in cells)
    order = _order(len(output), backwards)

    def run() -> None:
        hidden = last[index]
        for step in order:
            result = output[step, index]
            cell(products[step], (hidden, *carried), (result, *carried))
            hidden = result
        np.copyto(last[index], hidden)

    return run


def _bind_ragged(inputs: Inputs, index: int, call: KernelArguments, cell: Step, backwards: bool) -> Run:
    """All steps of sequences of several lengths: behind its end a sequence keeps its states and gives zeros.

    A sequence that is read backwards therefore begins at its own end.
    """
    output, products, lengths = call.outputs[0], call.scratch[0], inputs["sequence_lengths"][:, None]
    states = tuple(state[index] for state in call.outputs[1:])
    fresh = tuple(call.scratch[5:])
    order = _order(len(output), backwards)

    def run() -> None:
        for step in order:
            active = lengths > step
            cell(products[step], states, fresh)
            for state, value in zip(states, fresh, strict=True):
                np.copyto(state, value, where=active)
            output[step, index] = 0
            np.copyto(output[step, index], fresh[0], where=active)

    return run


def _by_gate(rows: Array, gates: int) -> Array:
    """[B, G * H] seen as [G, B, H]."""
    return rows.reshape(len(rows), gates, -1).swapaxes(0, 1)


def _whole_bias(bias: Array, hidden: int, parameters: Parameters) -> Array:
    half = len(bias) // 2
    return bias[:half] + bias[half:]


def _gru_bias(bias: Array, hidden: int, parameters: Parameters) -> Array:
    """Without the hidden gate's recurrent part, where that is multiplied by the reset gate."""
    total = _whole_bias(bias, hidden, parameters)
    if parameters["linear_before_reset"]:
        total[2 * hidden :] = bias[2 * hidden : 3 * hidden]
    return total


def _lstm_cell(
    inputs: Inputs, index: int, gates: Sequence[Gate], scratch: Sequence[Array], parameters: Parameters
) -> Step:
    product, opened, spare, block = scratch
    weights = inputs["recurrent_weights"][index].T
    peepholes = inputs["peepholes"][index].reshape(3, -1) if "peepholes" in inputs else None
    into, out, forget, new = opened
    gate, cell_function, hidden_function = gates
    open_into, open_out, open_forget = (bind_gate(gate, array, block) for array in (into, out, forget))
    # The standard limits what every function is given; ONNX Runtime, with which models were tried, not this one.
    unlimited = replace(hidden_function, clip=inf)
    open_new, squash = bind_gate(cell_function, new, block), bind_gate(unlimited, spare, block)
    coupled = parameters["input_forget"]

    def look(array: Array, position: int, cell: Array) -> None:
        if peepholes is not None:
            np.multiply(cell, peepholes[position], spare)
            np.add(array, spare, array)

    def step(products: Array, before: States, after: States) -> None:
        (hidden, cell), (result, next_cell) = before, after
        np.matmul(hidden, weights, product)
        np.add(_by_gate(product, 4), _by_gate(products, 4), opened)
        look(into, 0, cell)
        look(forget, 2, cell)
        open_into()
        if coupled:
            np.subtract(1, into, forget)
        else:
            open_forget()
        open_new()
        np.multiply(forget, cell, forget)
        np.multiply(into, new, into)
        np.add(forget, into, next_cell)
        look(out, 1, next_cell)
        open_out()
        np.copyto(spare, next_cell)
        squash()
        np.multiply(out, spare, result)

    return step


def _gru_cell(
    inputs: Inputs, index: int, gates: Sequence[Gate], scratch: Sequence[Array], parameters: Parameters
) -> Step:
    product, opened, spare, block = scratch
    hidden_units = opened.shape[2]
    weights = inputs["recurrent_weights"][index]
    gate_weights, new_weights = weights[: 2 * hidden_units].T, weights[2 * hidden_units :].T
    product = product.reshape(-1)[: 2 * spare.size].reshape(len(spare), -1)
    update, reset, new = opened
    open_both, open_new = bind_gate(gates[0], opened[:2], block), bind_gate(gates[1], new, block)
    linear = parameters["linear_before_reset"]
    offset = inputs["bias"][index][5 * hidden_units :] if "bias" in inputs else None

    def recur(hidden: Array) -> None:
        """What the new state takes from the one before, reset after or before the product."""
        if not linear:
            np.multiply(reset, hidden, spare)
            np.matmul(spare, new_weights, new)
            return
        np.matmul(hidden, new_weights, new)
        if offset is not None:
            np.add(new, offset, new)
        np.multiply(new, reset, new)

    def step(products: Array, before: States, after: States) -> None:
        (hidden,), (result,) = before, after
        input_products = _by_gate(products, 3)
        np.matmul(hidden, gate_weights, product)
        np.add(_by_gate(product, 2), input_products[:2], opened[:2])
        open_both()
        recur(hidden)
        np.add(new, input_products[2], new)
        open_new()
        np.subtract(hidden, new, result)
        np.multiply(result, update, result)
        np.add(result, new, result)

    return step


def _rnn_cell(
    inputs: Inputs, index: int, gates: Sequence[Gate], scratch: Sequence[Array], parameters: Parameters
) -> Step:
    product, _, _, block = scratch
    weights = inputs["recurrent_weights"][index].T
    squash = bind_gate(gates[0], product, block)

    def step(products: Array, before: States, after: States) -> None:
        np.matmul(before[0], weights, product)
        np.add(product, products, product)
        squash()
        np.copyto(after[0], product)

    return step


KERNELS: Mapping[str, NumpyKernel] = {
    "gru": NumpyKernel(bind=_bind(_gru_cell, _gru_bias), scratch=_scratch(3)),
    "lstm": NumpyKernel(bind=_bind(_lstm_cell, _whole_bias), scratch=_scratch(4)),
    "rnn": NumpyKernel(bind=_bind(_rnn_cell, _whole_bias), scratch=_scratch(1)),
}
"""Rows of the kernel table."""
