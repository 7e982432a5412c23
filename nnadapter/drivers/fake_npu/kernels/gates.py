"""The functions of recurrent gates, bound to the arrays that they change in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf

import numpy as np

from nnadapter.drivers.fake_npu.graph import Activation, Parameters
from nnadapter.drivers.fake_npu.kernels.elementwise import bind_activation
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.ir.operand import Array

Change = Callable[[Array], object]
"""Changes an array in place; what it returns is not looked at."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One function of a layer."""

    function: str
    """A name that the schema of LSTM allows."""
    parameters: tuple[float, ...]
    clip: float
    """Arguments are limited to [-clip, clip]; infinite for no limit."""


def gates_of(parameters: Parameters, directions: int) -> tuple[tuple[Gate, ...], ...]:
    """The functions of each direction.

    Args:
        parameters: `functions`, the names; `arguments_0`, `arguments_1`, … their parameters; `clip`.
        directions: 1 or 2.
    """
    names = parameters["functions"]
    gates = [
        Gate(name, tuple(parameters[f"arguments_{position}"]), parameters["clip"])
        for position, name in enumerate(names)
    ]
    each = len(gates) // directions
    return tuple(tuple(gates[start : start + each]) for start in range(0, len(gates), each))


def bind_gate(gate: Gate, array: Array, temporary: Array) -> Run:
    """Bind a function to a contiguous array.

    Args:
        gate: the function.
        array: what it is applied to, in place.
        temporary: one block, as `activation_scratch` says.
    """
    apply = _apply(gate, array, (temporary,))
    if isinf(gate.clip):
        return apply

    def limited() -> None:
        np.maximum(array, -gate.clip, out=array)
        np.minimum(array, gate.clip, out=array)
        apply()

    return limited


def _apply(gate: Gate, array: Array, temporaries: Sequence[Array]) -> Run:
    make = _OWN.get(gate.function)
    if make is not None:
        change = make(*gate.parameters)
        return lambda: change(array)
    few = temporaries[: FUNCTIONS[gate.function].temporaries]
    return bind_activation(Activation(gate.function, gate.parameters), few)(array)


def _affine(alpha: float, beta: float) -> Change:
    def affine(x: Array) -> None:
        np.multiply(x, alpha, x)
        np.add(x, beta, x)

    return affine


def _scaled_tanh(alpha: float, beta: float) -> Change:
    def scaled_tanh(x: Array) -> None:
        np.multiply(x, beta, x)
        np.tanh(x, x)
        np.multiply(x, alpha, x)

    return scaled_tanh


def _thresholded_relu(alpha: float) -> Change:
    def thresholded_relu(x: Array) -> None:
        np.copyto(x, 0, where=x < alpha)

    return thresholded_relu


_OWN: Mapping[str, Callable[..., Change]] = {
    "affine": _affine,
    "scaled_tanh": _scaled_tanh,
    "thresholded_relu": _thresholded_relu,
}
"""Functions that only recurrent layers have."""
