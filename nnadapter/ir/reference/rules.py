"""What follows from the code alone, in words: layouts, quantized operands, FLOPs, passes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from nnadapter.ir.operand import FLOATING
from nnadapter.ir.operations.layouts import IMAGES
from nnadapter.ir.operations.quantization import MOVERS, PRODUCTS, REALS
from nnadapter.ir.operations.row import no_flops, per_input, per_output
from nnadapter.ir.passes.run import PASSES
from nnadapter.ir.schema import FlopsRule, OperationSchema

_OF_IMAGES = "The first input may be NHWC; it then has its channels last, and so has the result."


def layouts(type_: str) -> str:
    """What an operation makes of images whose channels are last; empty where nothing is special."""
    return _OF_IMAGES if type_ in IMAGES else ""


def quantized_operands(schema: OperationSchema) -> str:
    """Which of the ways of quantized operands an operation goes."""
    type_ = schema.type
    if schema.always_quantized:
        return "Its result is quantized, as the model says of it."
    if type_ in PRODUCTS:
        return (
            "Integers of 8 bits without their zero points are multiplied and added up exactly. Without a quantized"
            " result, these sums are the result, in int32. With one, sums and an int32 bias are multiplied by scale of"
            " input * scale of weights / scale of result, rounded half to even, moved by the zero point and saturated;"
            " then an activation is applied to the reals that these integers stand for."
        )
    ways = []
    if type_ in MOVERS:
        ways.append("It moves integers; the result is quantized as the input is, if that is per tensor.")
    if type_ in REALS:
        ways.append(
            "With 8-bit quantized operands and a quantized result, it computes as DEQUANTIZE, itself in float32 and"
            " QUANTIZE would."
        )
    if type_ == "DEQUANTIZE":
        ways.append("Its input is quantized.")
    if not ways and schema.inputs[0].dtypes <= FLOATING:
        return "It takes none: its input is floating-point."
    return " ".join(ways) or "It sees their integers alone."


def flops_in_words(rule: FlopsRule) -> str:
    """The formula that many rows share, in words; empty for others."""
    if rule is no_flops:
        return "0"
    steps = inspect.getclosurevars(rule).nonlocals.get("steps") if inspect.isfunction(rule) else None
    shared = {per_output(1).__qualname__: "output", per_input(1).__qualname__: "first input"}
    of = shared.get(getattr(rule, "__qualname__", ""))
    return f"{steps} for each element of the {of}" if of else ""


@cache
def _texts_of_passes() -> dict[str, tuple[str, str]]:
    """By pass, its rules and its code."""
    return {name: (inspect.getdoc(function) or "", _text_of_pass(function)) for name, function in PASSES.items()}


def _text_of_pass(function: Callable[..., Any]) -> str:
    """Return the source of a pass and of every definition of its module that it reaches."""
    source = inspect.getsource(sys.modules[function.__module__])
    definitions = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            name = target.id if isinstance(target, ast.Name) else getattr(target, "name", "")
            definitions[name] = node
    texts, pending = {}, [function.__name__]
    while pending:
        name = pending.pop()
        if name in definitions and name not in texts:
            texts[name] = ast.get_source_segment(source, definitions[name]) or ""
            pending += [node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
    return "\n".join(texts.values())


def passes_that_name(type_: str) -> tuple[str, ...]:
    """The passes of the kit whose rules or tables name an operation; families such as REDUCE_… count."""
    family = re.escape(type_.partition("_")[0])
    words = re.compile(rf"\b{re.escape(type_)}\b(?!_)|\b{family}_…")
    texts = _texts_of_passes().items()
    return tuple(name for name, (rules, code) in texts if words.search(rules) or f'"{type_}"' in code)
