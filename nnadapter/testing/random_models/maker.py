"""Builder of random models, with the contents of every operand for one set of inputs.

A model in the making: the builder, and what every operand holds for one set of inputs.

That values are known while a model grows keeps it tame: an operation whose result is not finite, is too large to
compare, or is left undefined by ONNX is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, DataType, Layout, OperandType, Quantization, QuantizedType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import AttributeValue, OperationSchema
from nnadapter.ir.text import to_text
from nnadapter.testing.random_models.oracle import compute_operation

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
    """An array of one of a few distributions."""
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
    """Integers in [low, high), or [0, high) where the data type has no negative ones."""
    least = 0 if dtype.value.startswith("uint") else low
    return np.asarray(generator.integers(least, max(high, least + 1), dimensions)).astype(dtype.value)


def indices(random: Random, dtype: DataType, dimensions: tuple[int, ...], size: int) -> Array:
    """Indices into an axis of `size` elements; once in a while counted from the end."""
    generator = np.random.default_rng(random.randrange(_SEEDS))
    low = -size if random.random() < 0.3 else 0
    return integers(generator, dtype, dimensions, low, size)


Accept = Callable[[Model], bool]
"""Whether a model of one operation, the last, is wanted."""

LARGEST = 100.0
"""Of what a floating-point result may hold: far enough from float16's end for sums of it."""
MOST_ELEMENTS = 4096
MOST_FRESH = 2048
"""Elements of a fresh operand: the oracle looks at each by itself."""


@dataclass(frozen=True)
class RandomCase:
    """A model, and contents for its inputs."""

    model: Model
    feeds: tuple[Array, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis shows: the text form."""
        printer.text(f"Case of\n{to_text(self.model)}")


Sound = Callable[[Sequence[Array | None], Mapping[str, AttributeValue]], bool]
"""Whether ONNX defines the result for these values of the inputs."""
Proposal = tuple[Sequence[int], dict[str, AttributeValue], Sequence[QuantizedType]]
"""Inputs, attributes, and quantized types of results."""


class MakesOperation(Protocol):
    """How one operation is made; see `recipes`."""

    @property
    def sound(self) -> Sound:
        """Whether the result is defined for these values."""

    @property
    def knows_values(self) -> bool:
        """Whether the oracle has a result for all that is sound."""

    def propose(self, maker: Maker, schema: OperationSchema) -> Proposal:
        """Raises InvalidModelError where nothing fits."""


@dataclass
class Maker:
    """Grows one model; `random` decides everything."""

    random: Random
    dtypes: Sequence[DataType]
    """Data types of fresh operands."""
    sizes: Sequence[int] = (1, 2, 3, 4, 6)
    """Sizes of their axes."""
    ranks: Sequence[int] = (0, 1, 2, 2, 3, 3, 4, 4, 4, 5)
    """Numbers of their axes, where the operation leaves that open."""
    builder: ModelBuilder = field(default_factory=ModelBuilder)
    values: dict[int, Array] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    produced_operands: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Why attempts failed, the latest last."""

    def type_of(self, operand: int) -> OperandType:
        """The type of an operand."""
        return self.builder.type_of(operand)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def dimensions(self, rank: int | None = None) -> tuple[int, ...]:
        """Sizes of so many axes, or of any usual number."""
        rank = self.random.choice(self.ranks) if rank is None else rank
        sizes: list[int] = []
        for _ in range(rank):
            size = self.random.choice(self.sizes)
            sizes.append(size if prod(sizes) * size <= MOST_FRESH else 1)
        return tuple(sizes)

    def at_hand(self, fits: Callable[[OperandType], bool], *, quantized: bool = False) -> int | None:
        """An operand that fits, later ones more often; None if there is none. Quantized ones only where asked for."""
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
        """An operand that holds `value`: a constant with this probability, else an input."""
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
        """See `fresh`: an operand of this type with contents by chance, an image with channels last once in a while."""
        layout = Layout.NHWC if len(dimensions) == 4 and self.chance(0.1) else Layout.NCHW
        return self.fresh(contents(self.random, dtype, dimensions), layout, constant)

    def image(self, dtypes: frozenset[DataType]) -> int:
        """An operand of rank 4."""
        operand = self.at_hand(lambda type_: type_.rank == 4 and type_.dtype in dtypes) if self.chance(0.8) else None
        return self.fresh_of(self.dtype(dtypes), self.dimensions(4), 0.1) if operand is None else operand

    def dtype(self, allowed: frozenset[DataType]) -> DataType:
        """One of those in use that are allowed, or any allowed one."""
        return self.random.choice([dtype for dtype in self.dtypes if dtype in allowed] or sorted(allowed))

    def attempt(self, type_: str, recipe: MakesOperation, accept: Accept) -> bool:
        """Add an operation as the recipe says; False, and nothing is added, where it does not come out well."""
        mark, inputs, values = self.builder.mark(), list(self.inputs), dict(self.values)
        schema = schema_of(type_)
        try:
            operands, attributes, quantized = recipe.propose(self, schema)
            outputs = self.builder.add_operation(
                type_, operands, attributes, origins=[f"n{len(self.produced_operands)}"], quantized=quantized
            )
            model = self.builder.finish(())
            input_arrays = [None if operand == ABSENT else self.values[operand] for operand in operands]
            complete = model.operations[-1].attributes
            if not recipe.sound(input_arrays, complete):
                raise InvalidModelError("the values make the result undefined")
            if not accept(model):
                raise InvalidModelError("the operation is not wanted here, such as by the device's verdict")
            results = _results(model, input_arrays, recipe)
            expect_tame(results)
        except InvalidModelError as error:
            self.refusals.append(str(error))
            self.builder.undo(mark)
            self.inputs, self.values = inputs, values
            return False
        self.values.update(zip(outputs, results, strict=True))
        self.produced_operands.extend(outputs)
        self.read.update(operands)
        return True

    def finish(self, *, produced_only: bool = False) -> RandomCase:
        """The model: what nobody reads is its outputs, with some others; `produced_only` leaves out the rest."""
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


def _results(model: Model, input_arrays: Sequence[Array | None], recipe: MakesOperation) -> list[Array]:
    try:
        return compute_operation(model, len(model.operations) - 1, input_arrays)
    except (IndexError, ValueError) as error:
        if recipe.knows_values:
            raise
        raise InvalidModelError(f"the oracle has no result for these values: {error}") from error


def expect_tame(results: Sequence[Array]) -> None:
    """Raise InvalidModelError where results are not finite, or too large to be compared."""
    for result in results:
        if result.size > MOST_ELEMENTS:
            raise InvalidModelError(f"the result has {result.size} elements, expected at most {MOST_ELEMENTS}")
        if DataType(result.dtype.name).is_floating and result.size:
            wide = np.abs(result.astype(np.float64))
            if not np.isfinite(wide).all() or wide.max() > LARGEST:
                raise InvalidModelError("the result is not finite, or too large to be compared in float16")
