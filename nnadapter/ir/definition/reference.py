"""Entries of the operation reference: schema row, documentation, source of the definition and a computed example."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import unwrap
from itertools import zip_longest
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from nnadapter.errors import FAILURES, InvalidModelError, describe
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.definition.documentation import doc_of, family_of
from nnadapter.ir.definition.models import FUNCTIONS, by_definition
from nnadapter.ir.definition.onnx_ops import ONNX_OPS
from nnadapter.ir.definition.quantization import FUNCTIONS as QUANTIZED_FUNCTIONS
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import ANY, FLOATING, INTEGER, NUMERIC, Array, DataType, OperandType
from nnadapter.ir.operations import MOVERS, PRODUCTS, REALS, SCHEMAS, schema_of
from nnadapter.ir.operations.row import PerElement
from nnadapter.ir.operations.windows import IMAGES
from nnadapter.ir.passes.run import PASSES
from nnadapter.ir.schema import Attribute, Example, OperationDoc, OperationSchema, Role
from nnadapter.ir.verification import range_in_words
from nnadapter.records import dataclass

_OWN = "nnadapter.ir.definition"


def source_of(function: Callable[..., Any]) -> str:
    """Return the Python source of a function and of its dependencies in its module or in `ir.definition`.

    1. Functions without Python source are named only.
    2. A lambda is shown as its line.
    3. For a function returned by another function, the other one and the captured values are shown.
    4. Dependencies come first.
    """
    if isinstance(function, partial):  # `partial` over numpy
        function = function.func
    if not isinstance(function, FunctionType):
        return _named(function)
    parts: dict[str, str] = {}
    try:
        _collect(function, parts)
    except (KeyError, OSError, TypeError):  # unknown module, or one without source
        return _named(function)
    return "\n\n\n".join(parts.values())


def _named(function: Callable[..., Any]) -> str:
    home = "numpy" if isinstance(function, np.ufunc) else getattr(function, "__module__", None)
    name = getattr(function, "__name__", "")
    return f"{home}.{name}" if home and name else name or f"# {type(function).__name__}"


def _collect(function: FunctionType, parts: dict[str, str]) -> None:
    module, name = function.__module__, function.__qualname__.partition(".")[0]
    for reference in _references(function.__code__):
        _collect_name(module, reference, parts)
    captured = inspect.getclosurevars(function).nonlocals
    for value in captured.values():
        if isinstance(value, FunctionType) and value.__name__ != "<lambda>":
            _collect(value, parts)
    if name == "<lambda>":
        parts[f"{module}.{id(function)}"] = _line(function)
    elif name in _texts(module):
        _collect_name(module, name, parts)
    if captured and "." in function.__qualname__:
        parts[f"{module}.{id(function)}"] = _made_of(name, captured)


def _made_of(name: str, captured: Mapping[str, Any]) -> str:
    """Return the line of a lambda that a function captured, or a comment with all captured values."""
    for value in captured.values():
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
            return _line(value)
    return f"# made by {name} with {'; '.join(f'{key} = {_shown(value)}' for key, value in captured.items())}"


def _line(function: FunctionType) -> str:
    if function.__code__.co_filename == "<string>":  # from eval: Python 3.13 would return the source of `python -c`
        raise OSError("could not get source code")
    line = inspect.getsource(function).strip().rstrip(",")
    return re.sub(r'^"(\w+)": ', r"\1 = ", line)


def _shown(value: object) -> str:
    if isinstance(value, FunctionType):
        return value.__name__
    return f"numpy.{value.__name__}" if callable(value) and hasattr(value, "__name__") else repr(value)


def _collect_name(module: str, name: str, parts: dict[str, str]) -> None:
    value = getattr(sys.modules[module], name, None)
    home = getattr(value, "__module__", module) if isinstance(value, FunctionType) else module
    key = f"{home}.{name}"
    is_defined = home.startswith(_OWN) and home != __name__
    if key in parts or not (home == module or is_defined) or name not in _texts(home):
        return
    parts[key] = ""  # marks it as visited, for recursive functions
    text = _texts(home)[name]
    for reference in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}):
        _collect_name(home, reference, parts)
    del parts[key]
    parts[key] = text


def _references(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _references(constant)


@cache
def _texts(module: str) -> Mapping[str, str]:
    """Return the source of a module's functions and private variables, by name."""
    text = inspect.getsource(sys.modules[module])
    texts: dict[str, str] = {}
    for node in ast.parse(text).body:
        for name in _names(node):
            texts[name] = _without_remarks(ast.get_source_segment(text, node) or "")
    return texts


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name) and not target.id[0].isalpha())


def _without_remarks(text: str) -> str:
    return "\n".join(line.partition("  # type:")[0].partition("  # noqa")[0].rstrip() for line in text.splitlines())


_OF_IMAGES = "The first input may be NHWC; the result then has the same layout."


def _quantized_operands(schema: OperationSchema) -> str:
    type_ = schema.type
    if schema.always_quantized:
        return "The result is always quantized; the model defines its type."
    if type_ in PRODUCTS:
        return (
            "Integers of 8 or 16 bits, minus their zero points, are multiplied and accumulated exactly. Without a"
            " quantized result, the result is these sums in int32, or in int64 if an input has 16 bits. With one, sums"
            " and an int32 bias are multiplied by scale of"
            " input * scale of weights / scale of result, rounded half to even, shifted by the zero point and"
            " saturated; then an activation is applied to their real values."
        )
    ways = []
    if type_ in MOVERS:
        ways.append("Integers are moved; a per-tensor quantization passes on to the result.")
    if type_ in REALS:
        ways.append(
            "With 8-bit quantized operands and a quantized result, it computes like DEQUANTIZE, the operation in"
            " float32, and QUANTIZE."
        )
    if type_ == "DEQUANTIZE":
        ways.append("The input must be quantized.")
    if not ways and schema.inputs[0].dtypes <= FLOATING:
        return "Not supported: the input is floating-point."
    return " ".join(ways) or "It computes with the integers only."


@cache
def _texts_of_passes() -> dict[str, tuple[str, str]]:
    return {name: (inspect.getdoc(function) or "", _text_of_pass(function)) for name, function in PASSES.items()}


def _text_of_pass(function: Callable[..., Any]) -> str:
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


def _passes_that_name(type_: str) -> tuple[str, ...]:
    family = re.escape(type_.partition("_")[0])
    words = re.compile(rf"\b{re.escape(type_)}\b(?!_)|\b{family}_…")
    texts = _texts_of_passes().items()
    return tuple(name for name, (rules, code) in texts if words.search(rules) or f'"{type_}"' in code)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TriedExample:
    """An example with computed results."""

    model: Model
    inputs: tuple[tuple[OperandType, Array] | None, ...]
    """Types and arrays by role; None if absent."""
    outputs: tuple[tuple[OperandType, Array | None], ...]
    """Types and arrays; None without a definition."""
    flops: int


def _tried(type_: str, example: Example) -> TriedExample:
    builder = ModelBuilder()
    operands, inputs = [], list[tuple[OperandType, Array] | None]()
    for position, (array, quantization) in enumerate(zip_longest(example.inputs, example.quantizations)):
        if array is None:
            operands.append(ABSENT)
            inputs.append(None)
            continue
        type_of_input = OperandType(DataType(array.dtype.name), array.shape, quantization=quantization)
        operands.append(builder.add_input(f"input{position}", type_of_input))
        inputs.append((type_of_input, array))
    results = builder.add_operation(type_, operands, example.attributes, quantized=example.results)
    model = builder.finish(results)
    attributes = model.operations[0].attributes
    result_types = [model.type_at(result) for result in results]
    arrays = [array for array in example.inputs if array is not None]
    return TriedExample(
        model=model,
        inputs=tuple(inputs),
        outputs=tuple(zip(result_types, _results(model, arrays), strict=True)),
        flops=schema_of(type_).flops([row and row[0] for row in inputs], result_types, attributes),
    )


def _results(model: Model, arrays: Sequence[Array]) -> Sequence[Array | None]:
    (operation,) = model.operations
    if operation.type in FUNCTIONS or operation.type in QUANTIZED_FUNCTIONS:
        return by_definition(model, arrays)
    if schema_of(operation.type).definition is None:
        return [None] * len(operation.outputs)
    try:
        return by_definition(model, arrays)
    except FAILURES as error:
        message = f"the definition of {operation.type} fails with its own example: {describe(error)}; ask its vendor"
        raise InvalidModelError(message) from error


_SETS = (("any", ANY), ("any number", NUMERIC), ("any floating-point", FLOATING), ("any integer", INTEGER))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """Reference entry of an operation, as text. Missing information is empty."""

    type: str
    family: str
    """Empty for an external operation."""
    summary: str
    signature: str
    """One-line call with inputs, attributes and outputs: `?` is optional, `…` any number."""
    ranks: str
    inputs: tuple[Mapping[str, str], ...]
    """Keys: name, types, meaning."""
    attributes: tuple[Mapping[str, str], ...]
    """Keys: name, kind, default, choices, meaning; in the order of the row."""
    outputs: tuple[Mapping[str, str], ...]
    """Keys: name, meaning."""
    formula: str
    layouts: str
    quantized: str
    flops: str
    traps: tuple[str, ...]
    passes: tuple[str, ...]
    example: TriedExample | None
    onnx: tuple[str, ...]
    """ONNX ops that were observed to convert to it."""
    definition: str
    """Python source; empty if there is no definition."""
    source: str


def entry_of(type_: str) -> Entry:
    """Return the entry of an operation. Raises InvalidModelError."""
    schema = schema_of(type_)
    doc = doc_of(schema)
    return Entry(
        type=type_,
        family=family_of(type_),
        summary=doc.summary if doc else "",
        signature=_signature(schema),
        ranks=range_in_words(*schema.ranks),
        inputs=tuple(_input(role, doc) for role in schema.inputs),
        attributes=tuple(_attribute(attribute, doc) for attribute in schema.attributes),
        outputs=tuple({"name": name, "meaning": doc.outputs.get(name, "") if doc else ""} for name in schema.outputs),
        formula=doc.formula if doc else "",
        layouts=_OF_IMAGES if type_ in IMAGES else "",
        quantized=_quantized_operands(schema),
        flops=doc.flops if doc and doc.flops else str(schema.flops) if isinstance(schema.flops, PerElement) else "",
        traps=doc.traps if doc else (),
        passes=_passes_that_name(type_),
        example=_tried(type_, doc.example) if doc else None,
        onnx=ONNX_OPS.get(type_, ()),
        definition=_definition(type_),
        source=schema.source,
    )


def operation_called(name: str) -> str:
    """Return the operation with this name in any case, or the one that an ONNX op converts to.

    Raises:
        InvalidModelError: an ONNX op converts to several operations; the message lists them.
    """
    if name.upper() in SCHEMAS:
        return name.upper()
    operations = [type_ for type_, ops in ONNX_OPS.items() if name.lower() in map(str.lower, ops)]
    if len(operations) > 1:
        raise InvalidModelError(f"{name!r} is an ONNX op, which becomes {', '.join(operations)}; name one of them")
    return operations[0] if operations else name


def _signature(schema: OperationSchema) -> str:
    names = [role.name + ("…" if role.variadic else "?" if role.optional else "") for role in schema.inputs]
    settings = [
        attribute.name if attribute.default is None else f"{attribute.name} = {in_words(attribute.default)}"
        for attribute in schema.attributes
    ]
    call = ", ".join(names) + ("; " + ", ".join(settings) if settings else "")
    return f"{schema.type}({call}) -> {', '.join(schema.outputs)}{'…' if schema.variadic_outputs else ''}"


def _input(role: Role, doc: OperationDoc | None) -> Mapping[str, str]:
    types = f"as {role.same_dtype_as}" if role.same_dtype_as not in (None, role.name) else _data_types(role.dtypes)
    several = "any number" if role.optional else "one or more"
    kind = several if role.variadic else "optional" if role.optional else ""
    return {
        "name": role.name,
        "types": ", ".join(filter(None, (types, kind))),
        "meaning": doc.inputs.get(role.name, "") if doc else "",
    }


def _data_types(dtypes: frozenset[DataType]) -> str:
    for words, members in _SETS:
        if dtypes == members:
            return words
    for words, members in _SETS[1:]:
        if members < dtypes:
            return f"{words}, {', '.join(dtype.value for dtype in DataType if dtype in dtypes - members)}"
    return ", ".join(dtype.value for dtype in DataType if dtype in dtypes)


def _attribute(attribute: Attribute, doc: OperationDoc | None) -> Mapping[str, str]:
    length = "" if attribute.length is None else f" of {attribute.length}"
    choices = () if len(attribute.choices) == len(DataType) else attribute.choices
    return {
        "name": attribute.name,
        "kind": attribute.kind.value + length,
        "default": "required" if attribute.default is None else in_words(attribute.default),
        "choices": ", ".join(choices) or ("a data type" if attribute.choices else ""),
        "meaning": doc.attributes.get(attribute.name, "") if doc else "",
    }


def in_words(value: object) -> str:
    """Return an attribute value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(in_words, value))}{',' if len(value) == 1 else ''})"
    return repr(value) if value == "" else str(value)


def _definition(type_: str) -> str:
    function = QUANTIZED_FUNCTIONS.get(type_) or FUNCTIONS.get(type_)
    if function is None:
        guarded = schema_of(type_).definition  # external: unwrap the package's own function
        function = guarded and unwrap(guarded)
    return "" if function is None else source_of(function)


_WIDTH = 96


def to_text(entry: Entry) -> str:
    """Return the reference entry of an operation as text for a terminal."""
    return "\n".join(line.rstrip() for line in _lines(entry))


def _lines(entry: Entry) -> Iterator[str]:
    yield signature_text(entry)
    yield from _wrapped(entry.summary or "This operation has no documentation.")
    yield from _section("inputs", [(f"{row['name']} ({row['types']})", row["meaning"]) for row in entry.inputs])
    yield from _section("attributes", [(_attribute_text(row), row["meaning"]) for row in entry.attributes])
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


def _attribute_text(row: Mapping[str, str]) -> str:
    return f"{row['name']} ({row['kind']}, {row['default']}{'; ' if row['choices'] else ''}{row['choices']})"


def facts(entry: Entry) -> Sequence[tuple[str, str]]:
    """Return the titles and texts of an entry's further facts, without empty ones."""
    nobody = "none known; only models built by hand contain it" if entry.family and entry.definition else ""
    rows = (
        ("rank of the first input", entry.ranks),
        ("layouts", entry.layouts),
        ("quantized operands", entry.quantized),
        ("FLOPs", entry.flops),
        ("passes that mention it", ", ".join(entry.passes)),
        ("ONNX ops that convert to it", ", ".join(entry.onnx) or nobody),
        ("source", entry.source),
    )
    return [(name, text) for name, text in rows if text]


def signature_text(entry: Entry) -> str:
    """Return an entry's signature, wrapped to lines of limited width."""
    return "\n".join(_wrapped(entry.signature, "    "))


def formula_text(entry: Entry) -> str:
    """Return an entry's formula, wrapped to lines of limited width."""
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
    """Return the example, which must exist, as text: inputs, attributes in one line, results."""
    example = entry.example
    assert example is not None
    lines = [_operand_text(*row) for row in _inputs(entry, example)]
    attributes = _attributes(example)
    if attributes:
        settings = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        lines.extend(textwrap.wrap(settings, _WIDTH - 2, break_long_words=False))
    lines.extend(f"-> {_operand_text(*row)}" for row in _outputs(entry, example))
    return "\n".join(lines)


def _operand_text(name: str, type_: str, contents: str) -> str:
    head = f"{name}: {type_}"
    return f"{head} {contents}".rstrip() if "\n" not in contents else f"{head}\n{textwrap.indent(contents, '    ')}"


def _inputs(entry: Entry, example: TriedExample) -> Iterator[tuple[str, str, str]]:
    names = [row["name"] for row in entry.inputs]
    several = len(example.inputs) > len(names)
    for position, operand in enumerate(example.inputs):
        name = f"{names[-1]}[{position}]" if several else names[position]
        yield (name, "absent", "") if operand is None else (name, _type(operand[0]), _numbers(operand[1]))


def _attributes(example: TriedExample) -> dict[str, str]:
    return {name: in_words(value) for name, value in example.model.operations[0].attributes.items()}


def _outputs(entry: Entry, example: TriedExample) -> Iterator[tuple[str, str, str]]:
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
    """Return the entry as plain data."""
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
