"""A segment as one function, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.xla.engine import module, translated, wide_types
from nnadapter.errors import CompilationError
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What XLA made of a segment."""

    executable: Any
    """JAX's: called with the inputs and the constants."""
    constants: tuple[Any, ...]
    """On the device, in the order in which the function takes them."""
    device: Any
    """JAX's, that it runs on."""


def compiled(model: Model, closures: Sequence[Computes], device: Any, precision: str) -> Compiled:
    """Compile a segment with known sizes.

    Args:
        model: the segment.
        closures: what computes each operation.
        device: JAX's.
        precision: of products, as JAX calls it.

    Raises:
        CompilationError: JAX or XLA fails.
    """
    jax = module()
    places = constant_places(model)
    with translated("XLA did not compile the segment", "switch the device off for it", CompilationError), wide_types():
        sharding = jax.sharding.SingleDeviceSharding(device)

        def shape_of(index: int) -> Any:
            type_ = model.operands[index].type
            return jax.ShapeDtypeStruct(type_.dimensions, type_.dtype.array_type, sharding=sharding)

        with jax.default_matmul_precision(precision):
            traced = jax.jit(function_of(model, closures, places)).lower(
                [shape_of(index) for index in model.inputs], tuple(shape_of(index) for index in places)
            )
        executable = traced.compile()
        constants = tuple(jax.device_put(model.operands[index].value, device) for index in places)
    return Compiled(executable=executable, constants=constants, device=device)


def constant_places(model: Model) -> tuple[int, ...]:
    """The operands that are constants and that somebody reads."""
    read = {index for operation in model.operations for index in operation.inputs} | set(model.outputs)
    return tuple(i for i, operand in enumerate(model.operands) if operand.value is not None and i in read)


def function_of(
    model: Model, closures: Sequence[Computes], places: Sequence[int]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The whole segment as one function of inputs and constants."""

    def segment(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        values: dict[int, Any] = {ABSENT: None}
        values.update(zip(model.inputs, inputs, strict=True))
        values.update(zip(places, constants, strict=True))
        for operation, compute in zip(model.operations, closures, strict=True):
            results = compute(*(values[index] for index in operation.inputs))
            made = results if isinstance(results, (list, tuple)) else [results]
            values.update(zip(operation.outputs, made, strict=True))
        return [values[index] for index in model.outputs]

    return segment


def nbytes(arrays: Sequence[Array]) -> int:
    """Bytes of all of them."""
    return sum(int(array.nbytes) for array in arrays)
