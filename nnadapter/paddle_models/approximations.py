"""GELU by tanh, of which the converter makes the exact one: it is written out in operations that it takes as they are.

0.5 x (1 + tanh(u)) is x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).

Source: https://arxiv.org/abs/1606.08415, and `approximate` of `paddle.nn.functional.gelu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from math import pi, sqrt
from types import MappingProxyType
from typing import Any

from nnadapter.paddle_models.structures import walked

_GELU = "1.gelu"
_DTYPES: Mapping[str, str] = MappingProxyType({"0.t_f16": "float16", "0.t_f32": "float32", "0.t_f64": "float64"})
"""Types of elements as structures write them -> as attributes name them."""
_CUBE, _FACTOR = 0.044715, 2 * sqrt(2 / pi)


def write_out(program: Any) -> bool:
    """Replace every GELU by tanh in a program, in place, and return whether there was any."""
    if not any(map(_is_by_tanh, walked(program))):
        return False
    numbers = max(map(abs, _numbers(program)), default=0)
    for block in _blocks(program["regions"]):
        operations: list[Any] = []
        for operation in block["ops"]:
            if _is_by_tanh(operation):
                operations += _Writer(operation, numbers).operations()
                numbers += _Writer.VALUES
            else:
                operations.append(operation)
        block["ops"] = operations
    return True


def _is_by_tanh(operation: Any) -> bool:
    if operation["#"] != _GELU or operation["O"][0]["TT"]["D"][0]["#"] not in _DTYPES:
        return False
    return any(each["N"] == "approximate" and each["AT"]["D"] is True for each in operation["A"])


def _numbers(program: Any) -> Iterator[int]:
    """The number of every value, wherever a structure names it."""
    left = [program]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if isinstance(one.get("%"), int):
                yield one["%"]
            left += one.values()
        elif isinstance(one, list):
            left += one


def _blocks(regions: Sequence[Any]) -> Iterator[Any]:
    """Every block of some regions, those of regions inside of operations as well."""
    for region in regions:
        for block in region["blocks"]:
            yield block
            for operation in block["ops"]:
                yield from _blocks(operation.get("regions", ()))


class _Writer:
    """Writes one out. Its values have the numbers behind the last one of the program."""

    VALUES = 7

    def __init__(self, gelu: Any, last: int) -> None:
        self._input, self._output, self._last = gelu["I"][0], gelu["O"][0], last
        self._attributes = gelu.get("OA", [])
        self._made: list[Any] = []

    def operations(self) -> list[Any]:
        """What takes its place, in order."""
        x = self._input
        square = self._operation("1.multiply", [x, x])
        inner = self._operation("1.multiply", [x, self._scaled(square, _CUBE, 1.0)])
        gate = self._operation("1.sigmoid", [self._scaled(inner, _FACTOR, 0.0)])
        self._operation("1.multiply", [x, gate], output=self._output)
        return self._made

    def _scaled(self, value: Any, factor: float, bias: float) -> Any:
        constant = deepcopy(self._output["TT"])
        constant["D"][1] = [1]
        dtype = _DTYPES[constant["D"][0]["#"]]
        scale = self._operation(
            "1.full",
            [],
            [
                _attribute("shape", "1.a_intarray", [1]),
                _attribute("value", "0.a_f64", factor),
                _attribute("dtype", "1.a_dtype", dtype),
                _attribute("place", "1.a_place", [1, 0, ""]),
            ],
            typed=constant,
        )
        attributes = [_attribute("bias", "0.a_f32", bias), _attribute("bias_after_scale", "0.a_bool", True)]
        return self._operation("1.scale", [value, scale], attributes)

    def _operation(
        self, kind: str, inputs: Sequence[Any], attributes: Sequence[Any] = (), *, typed: Any = None, output: Any = None
    ) -> Any:
        """Add an operation, and return what reads its result."""
        if output is None:
            self._last += 1
            output = {"%": self._last, "TT": deepcopy(self._output["TT"]) if typed is None else typed}
        reads = [{"%": each["%"]} for each in inputs]
        made = {"#": kind, "A": list(attributes), "I": reads, "O": [output], "OA": deepcopy(self._attributes)}
        self._made.append(made)
        return output


def _attribute(name: str, kind: str, value: object) -> dict[str, object]:
    return {"AT": {"#": kind, "D": value}, "N": name}
