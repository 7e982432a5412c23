"""Patterns of operations, rules that replace their matches, and passes that edit a model in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from inspect import Parameter, signature
from itertools import chain
from math import frexp, isclose, ldexp
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec

import numpy as np

from nnadapter.errors import InvalidModelError, close_names
from nnadapter.ir import ABSENT, Array, AttributeValue, DataType, Model, Operand, Operation, OperationSchema, schema_of
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.derived import decided
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass, field

COMMUTATIVE = frozenset(["ADD", "MUL", "MAX", "MIN", "SUM", "EQUAL", "AND", "OR", "XOR"])


@dataclass(frozen=True, slots=True, eq=False)
class OperandPattern:
    """Pattern of any operand; made by `operand`."""

    name: str
    when: Callable[[Operand], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ConstantPattern:
    """Pattern of a constant; made by `constant`."""

    name: str = ""
    value: float | None = None
    when: Callable[[Array], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OperationPattern:
    """Pattern of an operation and its inputs; made by `operation`."""

    types: frozenset[str]
    inputs: tuple[Pattern, ...] = ()
    name: str = ""
    attributes: Mapping[str, AttributeValue | Callable[[AttributeValue], bool]] = field(default_factory=dict)
    most_operations: int = field(init=False)

    def __post_init__(self) -> None:
        for type_ in sorted(self.types):
            _check_possible(schema_of(type_), self)
        object.__setattr__(self, "most_operations", 1 + sum(map(_most_operations, self.inputs)))


@dataclass(frozen=True, slots=True, eq=False)
class EitherPattern:
    """Alternative patterns; made by `either`."""

    patterns: tuple[Pattern, ...]


Pattern = OperandPattern | ConstantPattern | OperationPattern | EitherPattern
Types = str | Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Operations and operands that match a pattern."""

    operations: tuple[int, ...]
    """Matched operations without duplicates; the anchor, which computes the result, is the first."""
    operands: Mapping[str, int]
    named: Mapping[str, int]

    @property
    def anchor(self) -> int:
        return self.operations[0]


def operand(name: str, when: Callable[[Operand], bool] | None = None) -> OperandPattern:
    """Return a pattern of operands for which `when` is true. `name` is the key in `Match.operands`."""
    return OperandPattern(name, when)


def is_floating(matched: Operand) -> bool:
    """Return whether an operand is floating-point; for use as `when` of `operand`."""
    return matched.type.dtype.is_floating


def constant(
    name: str = "", *, value: float | None = None, when: Callable[[Array], bool] | None = None
) -> ConstantPattern:
    """Return a pattern of a constant that satisfies `when`. `name` is the key in `Match.operands`, if any.

    With `value`, the constant has one element, equal up to one unit in the last place.
    """
    return ConstantPattern(name, value, when)


def operation(
    types: Types, *inputs: Pattern, name: str = "", **attributes: AttributeValue | Callable[[AttributeValue], bool]
) -> OperationPattern:
    """Return a pattern of an operation of one of `types`.

    Args:
        types: rows of the schema table.
        *inputs: patterns of the first inputs.
        name: key in `Match.named`; repeated names must match the same operation.
        **attributes: values, or predicates; floats match with a tolerance.

    Raises:
        InvalidModelError: it can never match.
    """
    return OperationPattern(frozenset((types,) if isinstance(types, str) else types), inputs, name, attributes)


def _most_operations(pattern: Pattern) -> int:
    if isinstance(pattern, EitherPattern):
        return max(map(_most_operations, pattern.patterns), default=0)
    return pattern.most_operations if isinstance(pattern, OperationPattern) else 0


def _check_possible(schema: OperationSchema, pattern: OperationPattern) -> None:
    roles = schema.inputs
    if len(pattern.inputs) > len(roles) and not (roles and roles[-1].variadic):
        names = ", ".join(role.name for role in roles)
        raise InvalidModelError(
            f"{schema.type}: the pattern has {len(pattern.inputs)} inputs, expected at most {len(roles)} ({names})"
        )
    for name, expected in pattern.attributes.items():
        attribute = schema.attribute(name)
        if attribute is None:
            suggestion = close_names(name, [schema_attribute.name for schema_attribute in schema.attributes])
            raise InvalidModelError(f"{schema.type}: the pattern has an unknown attribute {name!r}; {suggestion}")
        if attribute.choices and isinstance(expected, str) and expected not in attribute.choices:
            suggestion = close_names(expected, attribute.choices)
            raise InvalidModelError(
                f"{schema.type}: attribute {name!r} of the pattern is {expected!r}, an invalid value; {suggestion}"
            )


def either(*patterns: Pattern) -> EitherPattern:
    """Return a pattern that matches if one of `patterns` does, tried in order."""
    return EitherPattern(patterns)


def match_at(editor: ModelEditor, index: int, pattern: OperationPattern) -> Match | None:
    """Return the first match with operation `index` as its anchor, or None.

    Operations outside the match may read only the anchor's results.
    """
    operation_ = editor.operation(index)
    if operation_.type not in pattern.types or not _may_read(editor, pattern, operation_):
        return None
    for state in _match_operation(editor, pattern, index, _State({}, {}, ())):
        match = Match(tuple(dict.fromkeys(state.operations)), state.operands, state.named)
        if _is_private(editor, match):
            return match
    return None


def _may_read(editor: ModelEditor, pattern: OperationPattern, operation: Operation) -> bool:
    for position, input_pattern in enumerate(pattern.inputs):
        if not isinstance(input_pattern, OperationPattern):
            continue
        read = operation.inputs if operation.type in COMMUTATIVE else operation.inputs[position : position + 1]
        if not any(_may_produce(editor, operand, input_pattern.types, pattern.most_operations) for operand in read):
            return False
    return True


def _may_produce(editor: ModelEditor, operand: int, types: frozenset[str], most_operations: int) -> bool:
    producer = editor.producer(operand)
    if producer is None or editor.operation(producer).type not in types:
        return False
    return editor.reader_count(operand) < most_operations and not editor.is_output(operand)


def required_types(pattern: Pattern) -> frozenset[frozenset[str]]:
    """Return sets of operation types. A model with a match has an operation from each set."""
    if isinstance(pattern, OperationPattern):
        return frozenset({pattern.types}).union(*map(required_types, pattern.inputs))
    if isinstance(pattern, EitherPattern):
        return frozenset.intersection(*map(required_types, pattern.patterns))
    return frozenset()


class _State(NamedTuple):
    operands: dict[str, int]
    named: dict[str, int]
    operations: tuple[int, ...]


def _is_private(editor: ModelEditor, match: Match) -> bool:
    if len(match.operations) == 1:
        return True
    matched = set(match.operations)
    return all(
        not editor.is_output(operand) and editor.consumers(operand).keys() <= matched
        for index in match.operations[1:]
        for operand in editor.operation(index).outputs
    )


def _match_operation(editor: ModelEditor, pattern: OperationPattern, index: int, state: _State) -> Iterator[_State]:
    operation = editor.operation(index)
    if operation.type not in pattern.types or len(operation.inputs) < len(pattern.inputs):
        return
    if state.named.get(pattern.name, index) != index or not _attributes_match(pattern, operation):
        return
    if _is_quantized(editor, operation.inputs) or _is_quantized(editor, operation.outputs):
        return
    named = {**state.named, pattern.name: index} if pattern.name else state.named
    state = _State(state.operands, named, (*state.operations, index))
    yield from _match_inputs(editor, pattern.inputs, operation.inputs, state)
    if (
        len(pattern.inputs) == 2 == len(operation.inputs)
        and operation.type in COMMUTATIVE
        and operation.inputs[0] != operation.inputs[1]
    ):
        yield from _match_inputs(editor, pattern.inputs, operation.inputs[::-1], state)


def _is_quantized(editor: ModelEditor, operands: Sequence[int]) -> bool:
    return any(index != ABSENT and editor.type_of(index).quantization is not None for index in operands)


def _match_inputs(
    editor: ModelEditor, patterns: Sequence[Pattern], inputs: Sequence[int], state: _State
) -> Iterator[_State]:
    for position, pattern in enumerate(patterns):
        if isinstance(pattern, (OperationPattern, EitherPattern)):
            for first in _match_operand(editor, pattern, inputs[position], state):
                yield from _match_inputs(editor, patterns[position + 1 :], inputs[position + 1 :], first)
            return
        bound = _bound(editor, pattern, inputs[position], state)
        if bound is None:
            return
        state = bound
    yield state


def _match_operand(editor: ModelEditor, pattern: Pattern, index: int, state: _State) -> Iterator[_State]:
    if isinstance(pattern, OperationPattern):
        producer = editor.producer(index)
        if producer is not None and editor.operation(producer).outputs[0] == index:
            yield from _match_operation(editor, pattern, producer, state)
    elif isinstance(pattern, EitherPattern):
        yield from chain.from_iterable(
            _match_operand(editor, alternative, index, state) for alternative in pattern.patterns
        )
    elif (bound := _bound(editor, pattern, index, state)) is not None:
        yield bound


def _bound(editor: ModelEditor, pattern: OperandPattern | ConstantPattern, index: int, state: _State) -> _State | None:
    if index == ABSENT or not _is_meant(pattern, editor.operand(index)):
        return None
    if not pattern.name:
        return state
    bound_index = state.operands.get(pattern.name)
    if bound_index is None:
        return _State({**state.operands, pattern.name: index}, state.named, state.operations)
    return state if bound_index == index else None


def _is_meant(pattern: OperandPattern | ConstantPattern, operand: Operand) -> bool:
    if isinstance(pattern, OperandPattern):
        return pattern.when is None or pattern.when(operand)
    if operand.value is None:
        return False
    if pattern.value is not None and not _is_number(operand.value, operand.type.dtype, pattern.value):
        return False
    return pattern.when is None or decided(pattern.when, operand.value)


def _is_number(value: Array, dtype: DataType, expected: float) -> bool:
    """Compare a one-element array with a number: within one unit in the last place, or exactly (integers, float8)."""
    if value.size != 1:
        return False
    number = float(value.reshape(()))
    if dtype not in _PRECISION:
        return number == expected
    rounded = float(np.asarray(expected, value.dtype))
    return abs(number - rounded) <= ldexp(_PRECISION[dtype], frexp(rounded)[1] - 1) if rounded else number == rounded


_PRECISION = {
    DataType.FLOAT64: 2.0**-52,
    DataType.FLOAT32: 2.0**-23,
    DataType.FLOAT16: 2.0**-10,
    DataType.BFLOAT16: 2.0**-7,
}
"""Machine epsilon."""


def _attributes_match(pattern: OperationPattern, operation: Operation) -> bool:
    if operation.attributes.get("fuse_code", "none") != "none" and "fuse_code" not in pattern.attributes:
        return False
    return all(
        _attribute_matches(expected, operation.attributes.get(name)) for name, expected in pattern.attributes.items()
    )


def _attribute_matches(
    expected: AttributeValue | Callable[[AttributeValue], bool], value: AttributeValue | None
) -> bool:
    if value is None:
        return False
    if callable(expected):
        return expected(value)
    if isinstance(expected, float) and not isinstance(value, (str, tuple)):
        return isclose(value, expected, rel_tol=1e-6)
    return value == expected


Parameters = ParamSpec("Parameters")
Edit = Callable[[ModelEditor], None]


class EditingPass(Generic[Parameters]):
    """Pass made from a function that edits a model in place, so that passes can share an editor."""

    def __init__(self, edit: Callable[Concatenate[ModelEditor, Parameters], None]) -> None:
        self.edit = edit
        update_wrapper(self, edit)
        edit_signature = signature(edit)
        model = Parameter("model", Parameter.POSITIONAL_OR_KEYWORD, annotation="Model")
        named = [model, *list(edit_signature.parameters.values())[1:]]
        self.__signature__ = edit_signature.replace(parameters=named, return_annotation="Model")

    def __repr__(self) -> str:
        return f"<pass {getattr(self.edit, '__name__', self.edit)}>"

    def __reduce__(self) -> str:
        return self.edit.__qualname__

    def __call__(self, model: Model, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> Model:
        editor = ModelEditor(model)
        self.edit(editor, *arguments, **keywords)
        return editor.finish()


def editing(edit: Callable[Concatenate[ModelEditor, Parameters], None]) -> EditingPass[Parameters]:
    """Make a pass from a function that edits a model in place."""
    return EditingPass(edit)


def edit_of(function: Callable[..., Any]) -> Edit | None:
    """Return the function by which a pass edits a model in place; None if it returns a new model."""
    if isinstance(function, EditingPass):
        return function.edit
    if isinstance(function, partial):
        inner = edit_of(function.func)
        return None if inner is None else partial(inner, *function.args, **function.keywords)
    return None


Replacement = Callable[[ModelEditor, Match], Sequence[int] | None]
"""Function that adds operations, and returns operands for the anchor's outputs, or returns None without adding any.

New operations get `origins=match.operations`.
"""


_MOST_KNOWN = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class RewriteRule:
    """A pattern and its replacement."""

    pattern: OperationPattern
    replacement: Replacement
    required: frozenset[frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", required_types(self.pattern))

    def may_apply(self, types: frozenset[str]) -> bool:
        return _have_one_of_each(types, self.required)


@memoize(_MOST_KNOWN)
def _have_one_of_each(types: frozenset[str], required: frozenset[frozenset[str]]) -> bool:
    # Memoized: many models, such as the segments of one, have the same types.
    return not any(map(types.isdisjoint, required))


def rewrite(model: Model, rules: Sequence[RewriteRule]) -> Model:
    """Apply `rules` in one forward sweep; return the same model if none applies.

    The first applicable rule wins. Replacements take part in later matches, so chains fold in one sweep.
    """
    editor = ModelEditor(model)
    apply_rules(editor, rules)
    return editor.finish()


def apply_rules(editor: ModelEditor, rules: Sequence[RewriteRule]) -> None:
    """Apply rules to the model in an editor, as `rewrite` does."""
    types = editor.types
    candidates = _candidates(rules, types)
    if not candidates:
        return
    for index in editor.sweep(frozenset().union(*(rule.pattern.types for rule in rules))):
        if editor.types is not types:
            types = editor.types
            candidates = _candidates(rules, types)
        _apply(editor, index, candidates.get(editor.operation(index).type, ()))


def _candidates(rules: Sequence[RewriteRule], types: frozenset[str]) -> Mapping[str, Sequence[RewriteRule]]:
    rules_by_type: dict[str, list[RewriteRule]] = {}
    for rule in rules:
        if rule.may_apply(types):
            for type_ in rule.pattern.types:
                rules_by_type.setdefault(type_, []).append(rule)
    return rules_by_type


def _apply(editor: ModelEditor, index: int, rules: Sequence[RewriteRule]) -> None:
    for rule in rules:
        match = match_at(editor, index, rule.pattern)
        results = None if match is None else rule.replacement(editor, match)
        if match is not None and results is not None:
            editor.replace(match.operations, results)
            return
