"""What operations a structure of Paddle 3 holds, by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

_DIALECT = "1."
"""In front of names of Paddle's own operations. Others are of its containers, control flow and parameters."""
_NOT_CONVERTED = frozenset({"data", "feed", "fetch", "shadow_output", "if", "while", "has_elements", "select_input"})
"""Operations of Paddle's that stand for inputs, outputs and control flow, of which the converter keeps no list."""
_DRAWING = frozenset({"bernoulli", "dropout", "gaussian", "multinomial", "poisson", "randint", "uniform"})
"""Operations whose results nobody foretells."""
_OLD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "add": "elementwise_add",
        "all": "reduce_all",
        "any": "reduce_any",
        "arange": "range",
        "argmax": "arg_max",
        "argmin": "arg_min",
        "divide": "elementwise_div",
        "expand": "expand_v2",
        "flatten": "flatten_contiguous_range",
        "floor_divide": "elementwise_floordiv",
        "grid_sample": "grid_sampler",
        "hardsigmoid": "hard_sigmoid",
        "hardswish": "hard_swish",
        "matmul": "matmul_v2",
        "max": "reduce_max",
        "maximum": "elementwise_max",
        "mean": "reduce_mean",
        "min": "reduce_min",
        "minimum": "elementwise_min",
        "multiply": "elementwise_mul",
        "nonzero": "where_index",
        "prod": "reduce_prod",
        "remainder": "elementwise_mod",
        "subtract": "elementwise_sub",
        "topk": "top_k_v2",
        "unsqueeze": "unsqueeze2",
    }
)
"""Paddle 3's names of operations -> those by which the converter lists them, where they differ."""


def unsupported_in(operations: Collection[str], listed: Collection[str]) -> list[str]:
    """Return those of some operations that a converter does not have which lists these, by their names."""
    return sorted(name for name in operations if not _is_listed(name.removesuffix("_"), listed))


def _is_listed(name: str, listed: Collection[str]) -> bool:
    return not {name, f"{name}_", _OLD_NAMES.get(name, name)}.isdisjoint(listed)


def operations_of(program: Any) -> frozenset[str]:
    """Return the names of Paddle's operations in a program, in graphs inside of operations as well."""
    named = (str(operation["#"]) for operation in walked(program))
    names = (name.removeprefix(_DIALECT) for name in named if name.startswith(_DIALECT))
    return frozenset(names) - _NOT_CONVERTED


def walked(program: Any) -> Iterator[Any]:
    """Return every operation of a program, those in graphs inside of operations as well."""
    regions = list(program["regions"])
    while regions:
        for block in regions.pop()["blocks"]:
            for operation in block["ops"]:
                yield operation
                regions += operation.get("regions", ())


def draws_numbers(program: Any) -> bool:
    """Return whether a program draws random numbers; dropout does so in training alone."""
    drawing = (operation for operation in walked(program) if str(operation["#"]).removeprefix(_DIALECT) in _DRAWING)
    return not all(map(_is_test, drawing))


def _is_test(operation: Any) -> bool:
    return any(attribute["N"] == "is_test" and attribute["AT"]["D"] is True for attribute in operation["A"])
