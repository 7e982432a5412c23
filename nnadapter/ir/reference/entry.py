"""One entry of the reference: the row, what is said of it, its definition and its example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import unwrap

from nnadapter.errors import InvalidModelError
from nnadapter.ir.definition import FUNCTIONS
from nnadapter.ir.definition.quantized import QUANTIZED_FUNCTIONS
from nnadapter.ir.operand import ANY, FLOATING, INTEGER, NUMERIC, DataType
from nnadapter.ir.operations import SCHEMAS, schema_of
from nnadapter.ir.reference.families import family_of, meaning_of
from nnadapter.ir.reference.meaning import Meaning
from nnadapter.ir.reference.onnx_ops import ONNX_OPS
from nnadapter.ir.reference.rules import flops_in_words, layouts, passes_that_name, quantized_operands
from nnadapter.ir.reference.sources import source_of
from nnadapter.ir.reference.trying import Tried, tried
from nnadapter.ir.schema import Attribute, OperationSchema, Role

_SETS = (("any", ANY), ("any number", NUMERIC), ("any floating-point", FLOATING), ("any integer", INTEGER))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """Everything that is known of an operation, in words. What nobody says is empty."""

    type: str
    family: str
    """Empty for an operation from outside."""
    summary: str
    signature: str
    """Inputs, attributes and outputs in one line, as a call: `?` may be absent, `…` any number."""
    ranks: str
    """Of the first input."""
    inputs: tuple[Mapping[str, str], ...]
    """name, types, meaning."""
    attributes: tuple[Mapping[str, str], ...]
    """name, kind, default, choices, meaning; in the order of the row."""
    outputs: tuple[Mapping[str, str], ...]
    """name, meaning."""
    formula: str
    layouts: str
    quantized: str
    """What it makes of quantized operands."""
    flops: str
    traps: tuple[str, ...]
    passes: tuple[str, ...]
    """Those of the kit whose rules or tables name it."""
    example: Tried | None
    onnx: tuple[str, ...]
    """ONNX ops whose conversion was seen to make it."""
    definition: str
    """Python; empty if it has none."""
    source: str


def entry_of(type_: str) -> Entry:
    """Return the entry of an operation.

    Raises:
        InvalidModelError: there is no such operation.
    """
    schema = schema_of(type_)
    meaning = meaning_of(schema)
    return Entry(
        type=type_,
        family=family_of(type_),
        summary=meaning.summary if meaning else "",
        signature=_signature(schema),
        ranks=ranks_in_words(schema.ranks),
        inputs=tuple(_input(role, meaning) for role in schema.inputs),
        attributes=tuple(_attribute(attribute, meaning) for attribute in schema.attributes),
        outputs=tuple(
            {"name": name, "meaning": meaning.outputs.get(name, "") if meaning else ""} for name in schema.outputs
        ),
        formula=meaning.formula if meaning else "",
        layouts=layouts(type_),
        quantized=quantized_operands(schema),
        flops=meaning.flops if meaning and meaning.flops else flops_in_words(schema.flops),
        traps=meaning.traps if meaning else (),
        passes=passes_that_name(type_),
        example=tried(type_, meaning.example) if meaning else None,
        onnx=ONNX_OPS.get(type_, ()),
        definition=_definition(type_),
        source=schema.source,
    )


def operation_called(name: str) -> str:
    """Return the operation that a person means: by its name in any case, or the one that an ONNX op becomes.

    Raises:
        InvalidModelError: an ONNX op becomes several operations, which the message names.
    """
    if name.upper() in SCHEMAS:
        return name.upper()
    made = [type_ for type_, ops in ONNX_OPS.items() if name.lower() in map(str.lower, ops)]
    if len(made) > 1:
        raise InvalidModelError(f"{name!r} is an ONNX op, which becomes {', '.join(made)}; name one of them")
    return made[0] if made else name


def _signature(schema: OperationSchema) -> str:
    names = [role.name + ("…" if role.variadic else "?" if role.optional else "") for role in schema.inputs]
    settings = [
        attribute.name if attribute.default is None else f"{attribute.name} = {in_words(attribute.default)}"
        for attribute in schema.attributes
    ]
    call = ", ".join(names) + ("; " + ", ".join(settings) if settings else "")
    return f"{schema.type}({call}) -> {', '.join(schema.outputs)}{'…' if schema.variadic_outputs else ''}"


def ranks_in_words(ranks: tuple[int, int]) -> str:
    """A span of ranks: `4`, `2 to 5`, `1 or more`."""
    low, high = ranks
    return str(low) if low == high else f"{low} or more" if high >= 64 else f"{low} to {high}"


def _input(role: Role, meaning: Meaning | None) -> Mapping[str, str]:
    types = f"as {role.same}" if role.same not in (None, role.name) else _data_types(role.dtypes)
    several = "any number" if role.optional else "one or more"
    kind = several if role.variadic else "optional" if role.optional else ""
    return {
        "name": role.name,
        "types": ", ".join(filter(None, (types, kind))),
        "meaning": meaning.inputs.get(role.name, "") if meaning else "",
    }


def _data_types(dtypes: frozenset[DataType]) -> str:
    for words, members in _SETS:
        if dtypes == members:
            return words
    for words, members in _SETS[1:]:
        if members < dtypes:
            return f"{words}, {', '.join(dtype.value for dtype in DataType if dtype in dtypes - members)}"
    return ", ".join(dtype.value for dtype in DataType if dtype in dtypes)


def _attribute(attribute: Attribute, meaning: Meaning | None) -> Mapping[str, str]:
    length = "" if attribute.length is None else f" of {attribute.length}"
    choices = () if len(attribute.choices) == len(DataType) else attribute.choices
    return {
        "name": attribute.name,
        "kind": attribute.kind.value + length,
        "default": "required" if attribute.default is None else in_words(attribute.default),
        "choices": ", ".join(choices) or ("a data type" if attribute.choices else ""),
        "meaning": meaning.attributes.get(attribute.name, "") if meaning else "",
    }


def in_words(value: object) -> str:
    """The value of an attribute as the text form has it, near enough to be read."""
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
        guarded = schema_of(type_).definition  # of an operation from outside: what its package wrote is inside
        function = guarded and unwrap(guarded)
    return "" if function is None else source_of(function)
