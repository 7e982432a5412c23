"""An entry as text for a terminal, and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array, OperandType
from nnadapter.ir.reference.entry import Entry, Tried, in_words

_WIDTH = 96


def to_text(entry: Entry) -> str:
    """Return the entry as a person reads it in a terminal."""
    return "\n".join(line.rstrip() for line in _lines(entry))


def _lines(entry: Entry) -> Iterator[str]:
    yield signature_text(entry)
    yield from _wrapped(entry.summary or "Nobody says what it means.")
    yield from _section("inputs", [(f"{row['name']} ({row['types']})", row["meaning"]) for row in entry.inputs])
    yield from _section("attributes", [(_attribute(row), row["meaning"]) for row in entry.attributes])
    yield from _section("outputs", [(row["name"], row["meaning"]) for row in entry.outputs])
    yield from _block("formula", formula_text(entry))
    if entry.example is not None:
        yield from _block(f"example, {entry.example.flops} FLOPs", example_text(entry))
    if entry.traps:
        yield from ("", "traps")
    for trap in entry.traps:
        yield from _wrapped(trap, "    ", first="  - ")
    yield from _section("more", facts(entry))
    yield from _block("definition", entry.definition)


def _attribute(row: Mapping[str, str]) -> str:
    return f"{row['name']} ({row['kind']}, {row['default']}{'; ' if row['choices'] else ''}{row['choices']})"


def facts(entry: Entry) -> Sequence[tuple[str, str]]:
    """What is said of every operation in one sentence each: name and sentence; what is empty is left out."""
    nobody = "none that is known; models built by hand have it" if entry.family and entry.definition else ""
    rows = (
        ("rank of the first input", entry.ranks),
        ("layouts", entry.layouts),
        ("quantized operands", entry.quantized),
        ("FLOPs", entry.flops),
        ("passes that name it", ", ".join(entry.passes)),
        ("ONNX ops that become it", ", ".join(entry.onnx) or nobody),
        ("source", entry.source),
    )
    return [(name, text) for name, text in rows if text]


def signature_text(entry: Entry) -> str:
    """The signature in lines that fit."""
    return "\n".join(_wrapped(entry.signature, "    "))


def formula_text(entry: Entry) -> str:
    """The formula in lines that fit."""
    lines: list[str] = []
    for line in entry.formula.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.extend(_wrapped(line.strip(), f"{indent}        ", first=indent))
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "", first: str = "") -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False)


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from ("", title)
    for name, text in rows:
        yield from _wrapped(f"{name}: {text}", "      ", first="  ")


def _block(title: str, text: str) -> Iterator[str]:
    if text:
        yield from ("", title, textwrap.indent(text, "  "))


def example_text(entry: Entry) -> str:
    """The example of an entry that has one: inputs, attributes in one line, results."""
    example = entry.example
    assert example is not None
    lines = [_named(*row) for row in _inputs(entry, example)]
    attributes = _attributes(example)
    if attributes:
        settings = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        lines.extend(textwrap.wrap(settings, _WIDTH - 2, break_long_words=False))
    lines.extend(f"-> {_named(*row)}" for row in _outputs(entry, example))
    return "\n".join(lines)


def _named(name: str, type_: str, contents: str) -> str:
    head = f"{name}: {type_}"
    return f"{head} {contents}".rstrip() if "\n" not in contents else f"{head}\n{textwrap.indent(contents, '    ')}"


def _inputs(entry: Entry, example: Tried) -> Iterator[tuple[str, str, str]]:
    names = [row["name"] for row in entry.inputs]
    several = len(example.inputs) > len(names)
    for position, given in enumerate(example.inputs):
        name = f"{names[-1]}[{position}]" if several else names[position]
        yield (name, "absent", "") if given is None else (name, _type(given[0]), _numbers(given[1]))


def _attributes(example: Tried) -> dict[str, str]:
    return {name: in_words(value) for name, value in example.model.operations[0].attributes.items()}


def _outputs(entry: Entry, example: Tried) -> Iterator[tuple[str, str, str]]:
    names = [row["name"] for row in entry.outputs]
    several = len(example.outputs) > len(names)
    for position, (type_, array) in enumerate(example.outputs):
        name = f"{names[-1]}[{position}]" if several else names[position]
        yield name, _type(type_), "computed by a kernel" if array is None else _numbers(array)


def _numbers(array: Array) -> str:
    shown = array.astype(np.float64) if array.dtype.kind == "V" else array
    return np.array2string(shown, precision=4, separator=", ", suppress_small=True, max_line_width=90)


def _type(type_: OperandType) -> str:
    quantization = type_.quantization
    if quantization is None:
        return str(type_)
    scale, zero_point = (
        in_words(values[0] if quantization.axis is None else values)
        for values in (quantization.scale, quantization.zero_point)
    )
    return f"{type_}, scale {scale}, zero point {zero_point},"


def to_dict(entry: Entry) -> dict[str, Any]:
    """The entry as plain data."""
    example = entry.example
    plain = {name: getattr(entry, name) for name in entry.__dataclass_fields__ if name != "example"}
    if example is None:
        return {**plain, "example": None}
    tensors = (
        [{"name": name, "type": type_, "value": value} for name, type_, value in rows]
        for rows in (_inputs(entry, example), _outputs(entry, example))
    )
    inputs, outputs = tensors
    attributes = _attributes(example)
    return {
        **plain,
        "example": {"inputs": inputs, "attributes": attributes, "outputs": outputs, "flops": example.flops},
    }
