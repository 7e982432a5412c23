"""Builder of random models with values, and a check of results with tolerances from noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.accuracy.tolerances import BANDS, band_of
from nnadapter.errors import InvalidModelError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.definition import by_definition
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Layout, Lifetime, Operand, OperandType, Quantization
from nnadapter.ir.schema import Attributes, AttributeValue, OperationSchema
from nnadapter.ir.text import to_text
from nnadapter.records import dataclass, field, replace

Perturb = Callable[[Array, Array | None], Array]
"""Function that adds noise to an array, in proportion to its values and to the magnitudes in the second argument."""

_RUNS, _MORE_RUNS = 2, 64
_ROOM = 4.0
"""Tolerance as a multiple of the deviations that noise causes."""
_SMALLEST = 1.0
"""Magnitude added to results in tolerances, because of cancellation."""
_MADE_TOGETHER: Mapping[str, Callable[[Attributes], tuple[Any, ...]]] = {
    "DFT": lambda attributes: (attributes["axis"], -1),
    "STFT": lambda attributes: (-2, -1),
}
"""Operation -> axes of its FFT. Each step affects all elements along them, so errors are relative to the largest.

Source: N. Higham, Accuracy and stability of numerical algorithms, 2002, theorem 24.2; and Parseval's theorem.
"""


def compute_operation(model: Model, position: int, input_arrays: Sequence[Array | None]) -> list[Array]:
    """Compute one operation by its definition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
        return by_definition(
            _single_operation_model(model, position), _distinct(model.operations[position].inputs, input_arrays)
        )


def _distinct(operands: Sequence[int], input_arrays: Sequence[Array | None]) -> list[Array]:
    return list(
        {operand: value for operand, value in zip(operands, input_arrays, strict=True) if value is not None}.values()
    )


def _single_operation_model(model: Model, position: int) -> Model:
    operation = model.operations[position]
    distinct_inputs = list(dict.fromkeys(operand for operand in operation.inputs if operand != ABSENT))
    indices = [*distinct_inputs, *operation.outputs]
    place = {operand: index for index, operand in enumerate(indices)} | {ABSENT: ABSENT}
    operands = tuple(
        Operand(
            f"o{operand}", model.operands[operand].type, Lifetime.MODEL_INPUT if operand in distinct_inputs else _OUTPUT
        )
        for operand in indices
    )
    inputs, outputs = (
        tuple(place[operand] for operand in operand_list) for operand_list in (operation.inputs, operation.outputs)
    )
    moved = replace(operation, inputs=inputs, outputs=outputs)
    return Model(operands, (moved,), tuple(range(len(distinct_inputs))), outputs)


_OUTPUT = Lifetime.MODEL_OUTPUT


def evaluate(model: Model, feeds: Sequence[Array], perturb: Perturb = lambda value, size: value) -> dict[int, Array]:
    """Compute a model by its operations' definitions, with noise from `perturb`; return every operand's value."""
    values = {index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None}
    values.update(zip(model.inputs, feeds, strict=True))
    for position, operation in enumerate(model.operations):
        input_arrays = [None if operand == ABSENT else perturb(values[operand], None) for operand in operation.inputs]
        results = compute_operation(model, position, input_arrays)
        off = [perturb(result, _size(operation, result)) for result in results]
        values.update(zip(operation.outputs, off, strict=True))
    return values


def _size(operation: Operation, result: Array) -> Array | None:
    axes = _MADE_TOGETHER.get(operation.type)
    if axes is None or not result.size:
        return None
    return np.asarray(np.abs(result.astype(np.float64)).max(axes(operation.attributes), keepdims=True))


def outputs_of(model: Model, feeds: Sequence[Array]) -> list[Array]:
    """Compute the outputs of a model by its definition."""
    values = evaluate(model, feeds)
    return [values[operand] for operand in model.outputs]


def noise(generator: np.random.Generator, precision: DataType) -> Perturb:
    """Return a function that adds rounding noise of a data type."""

    def perturb(value: Array, size: Array | None) -> Array:
        dtype = DataType(value.dtype.name)
        if not dtype.is_floating:
            return value
        share = _share(dtype, precision) * generator.uniform(-1, 1, value.shape)
        moved = np.asarray(value.astype(np.float64) * (1 + share))
        if size is not None:
            moved += share * size
        # In low precision, different numbers may become equal.
        return (moved.astype(precision.array_type) if _is_coarse(precision) else moved).astype(value.dtype)

    return perturb


def _is_coarse(precision: DataType) -> bool:
    return precision is not DataType.FLOAT32


def _share(dtype: DataType, precision: DataType) -> float:
    return (band_of(dtype, precision) if _is_coarse(precision) else BANDS[dtype]).noise


def check(
    model: Model, feeds: Sequence[Array], got: Sequence[Array], *, precision: DataType = DataType.FLOAT32
) -> None:
    """Raise AssertionError unless `got` is a model's result within the tolerance of `precision`."""
    right = evaluate(model, feeds)
    expected = [right[operand] for operand in model.outputs]
    for output, expected_output, operand in zip(got, expected, model.outputs, strict=True):
        name = model.operands[operand].name
        assert (output.dtype, output.shape) == (expected_output.dtype, expected_output.shape), (
            f"{name}: {output.dtype}{output.shape}"
        )
    generator = np.random.default_rng(0)
    spread: list[Array] = [np.zeros(expected_output.shape) for expected_output in expected]
    for runs in (_RUNS, _MORE_RUNS):
        for _ in range(runs):
            if not _widen(model, feeds, expected, spread, noise(generator, precision)):
                return
        off = _first_difference(model, got, expected, spread, precision)
        if off is None:
            return
    raise AssertionError(off)


def _widen(
    model: Model, feeds: Sequence[Array], expected: Sequence[Array], spread: list[Array], perturb: Perturb
) -> bool:
    try:
        values = evaluate(model, feeds, perturb)
    except (IndexError, ValueError):
        return False
    for position, operand in enumerate(model.outputs):
        off = _distance(values[operand], expected[position])
        if not DataType(expected[position].dtype.name).is_floating:
            off = np.where(off > 0, np.inf, 0)
        spread[position] = np.maximum(spread[position], np.where(np.isnan(off), np.inf, off))
    return True


def _first_difference(
    model: Model, got: Sequence[Array], expected: Sequence[Array], spread: Sequence[Array], precision: DataType
) -> str | None:
    for output, expected_output, room, operand in zip(got, expected, spread, model.outputs, strict=True):
        dtype = DataType(expected_output.dtype.name)
        share = _share(dtype, precision) if dtype.is_floating else 0.0
        limit = _ROOM * room + share * (np.abs(expected_output.astype(np.float64)) + _SMALLEST)
        off = _distance(output, expected_output)
        wrong = ~(off <= limit) & np.isfinite(limit)  # unlimited results may be NaN
        if wrong.any():
            where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
            return (
                f"{model.operands[operand].name}{list(where)}: got {output[where]}, expected {expected_output[where]} "
                f"within {limit[where]}; {int(wrong.sum())} of {wrong.size} elements are off"
            )
    return None


def _distance(output: Array, expected: Array) -> Any:
    if output.dtype == np.bool_:
        return (output != expected).astype(np.float64)
    if output.dtype.kind in "iu":  # float64 cannot represent all of int64
        return np.where(output == expected, 0.0, np.maximum(1.0, np.abs(output.astype(np.float64) - expected)))
    return np.asarray(np.abs(output.astype(np.float64) - expected.astype(np.float64)))


_SEEDS = 1000

_REALS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = MappingProxyType(
    {
        "normal": lambda generator, size: generator.standard_normal(size),
        "quarters": lambda generator, size: generator.integers(-8, 9, size) / 4,
        "positive": lambda generator, size: generator.uniform(0.25, 2, size),
        "unit": lambda generator, size: generator.uniform(-1, 1, size),
    }
)
_INTEGERS: Mapping[str, tuple[int, int]] = MappingProxyType({"small": (-5, 6), "positive": (1, 5), "indices": (0, 2)})


def contents(random: Random, dtype: DataType, dimensions: tuple[int, ...]) -> Array:
    """Return an array from a random distribution."""
    generator = np.random.default_rng(random.randrange(_SEEDS))
    if dtype is DataType.BOOL:
        return np.asarray(generator.integers(0, 2, dimensions), np.bool_)
    if dtype.is_floating:
        return np.asarray(_REALS[random.choice(list(_REALS))](generator, dimensions)).astype(dtype.value)
    low, high = _INTEGERS[random.choice(list(_INTEGERS))]
    return integers(generator, dtype, dimensions, low, high)


def integers(
    generator: np.random.Generator, dtype: DataType, dimensions: tuple[int, ...], low: int, high: int
) -> Array:
    """Return integers in [low, high), or [0, high) if unsigned."""
    least = 0 if dtype.value.startswith("uint") else low
    return np.asarray(generator.integers(least, max(high, least + 1), dimensions)).astype(dtype.value)


def indices(random: Random, dtype: DataType, dimensions: tuple[int, ...], size: int) -> Array:
    """Return random indices into an axis of `size` elements, sometimes negative."""
    generator = np.random.default_rng(random.randrange(_SEEDS))
    low = -size if random.random() < 0.3 else 0
    return integers(generator, dtype, dimensions, low, size)


Accept = Callable[[Model], bool]
"""Function that returns True if the last operation of a model may be used."""

LARGEST = 100.0
MOST_ELEMENTS = 4096
MOST_FRESH = 2048


@dataclass(frozen=True)
class RandomCase:
    """Random model with values of its inputs."""

    model: Model
    feeds: tuple[Array, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"Case of\n{to_text(self.model)}")


Sound = Callable[[Sequence[Array | None], Mapping[str, AttributeValue]], bool]
"""Function that returns True if ONNX defines the result for these inputs."""


@dataclass
class Maker:
    """Builder of one random model."""

    random: Random
    dtypes: Sequence[DataType]
    sizes: Sequence[int] = (1, 2, 3, 4, 6)
    ranks: Sequence[int] = (0, 1, 2, 2, 3, 3, 4, 4, 4, 5)
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    values: dict[int, Array] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    produced_operands: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def type_of(self, operand: int) -> OperandType:
        return self.builder.type_of(operand)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def dimensions(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.random.choice(self.ranks) if rank is None else rank
        sizes: list[int] = []
        for _ in range(rank):
            size = self.random.choice(self.sizes)
            sizes.append(size if prod(sizes) * size <= MOST_FRESH else 1)
        return tuple(sizes)

    def at_hand(self, fits: Callable[[OperandType], bool], *, quantized: bool = False) -> int | None:
        """Choose an operand that fits, often one of the last two; None if none fits."""
        types = {operand: self.type_of(operand) for operand in self.values}
        candidates = [
            candidate for candidate, type_ in types.items() if (quantized or not type_.quantization) and fits(type_)
        ]
        if not candidates:
            return None
        return self.random.choice(candidates[-2:] if self.chance(0.5) else candidates)

    def fresh(
        self,
        value: Array,
        layout: Layout = Layout.NCHW,
        constant: float = 0.5,
        quantization: Quantization | None = None,
    ) -> int:
        name = f"v{len(self.values)}"
        if self.chance(constant):
            operand = self.builder.add_constant(name, value, quantization)
        else:
            type_ = OperandType(DataType(value.dtype.name), value.shape, layout, quantization)
            operand = self.builder.add_input(name, type_)
            self.inputs.append(operand)
        self.values[operand] = value
        return operand

    def fresh_of(self, dtype: DataType, dimensions: tuple[int, ...], constant: float = 0.5) -> int:
        layout = Layout.NHWC if len(dimensions) == 4 and self.chance(0.1) else Layout.NCHW
        return self.fresh(contents(self.random, dtype, dimensions), layout, constant)

    def like_first(
        self, schema: OperationSchema, rank: int, fits: Callable[[OperandType], bool] = lambda type_: True
    ) -> int:
        """Choose an operand for an operation's first input; if none fits, add one of rank `rank`."""
        allowed = schema.inputs[0].dtypes
        operand = self.at_hand(lambda type_: type_.dtype in allowed and fits(type_))
        return self.fresh_of(self.dtype(allowed), self.dimensions(rank), 0.1) if operand is None else operand

    def image(self, schema: OperationSchema) -> int:
        allowed = schema.inputs[0].dtypes
        if self.chance(0.8):
            return self.like_first(schema, 4, lambda type_: type_.rank == 4)
        return self.fresh_of(self.dtype(allowed), self.dimensions(4), 0.1)

    def dtype(self, allowed: frozenset[DataType]) -> DataType:
        return self.random.choice([dtype for dtype in self.dtypes if dtype in allowed] or sorted(allowed))

    def finish(self, *, produced_only: bool = False) -> RandomCase:
        """Return the model and its inputs. All results that no operation reads become outputs.

        Some random other values become outputs too; with `produced_only`, only operations' results do.
        """
        unread = [operand for operand in self.produced_operands if operand not in self.read]
        read_operands = [
            operand for operand in (self.produced_operands if produced_only else self.values) if operand not in unread
        ]
        extra_outputs = [operand for operand in read_operands if self.chance(0.15)]
        outputs = [*unread, *extra_outputs] or list(self.values)[:1]
        if not produced_only and self.chance(0.1):
            outputs.append(outputs[0])
        self.random.shuffle(outputs)
        return RandomCase(self.builder.finish(outputs), tuple(self.values[operand] for operand in self.inputs))


def expect_tame(results: Sequence[Array]) -> None:
    """Raise InvalidModelError if results are not finite or too large to compare."""
    for result in results:
        if result.size > MOST_ELEMENTS:
            raise InvalidModelError(f"the result has {result.size} elements, expected at most {MOST_ELEMENTS}")
        if DataType(result.dtype.name).is_floating and result.size:
            wide = np.abs(result.astype(np.float64))
            if not np.isfinite(wide).all() or wide.max() > LARGEST:
                raise InvalidModelError("the result is not finite, or too large to be compared in float16")
