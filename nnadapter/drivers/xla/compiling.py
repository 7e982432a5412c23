"""A segment as one function, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.xla.carrying import carried, carrier
from nnadapter.drivers.xla.engine import module, own_settings, translated
from nnadapter.drivers.xla.heap import give_back
from nnadapter.drivers.xla.packing import Pack, packs_of
from nnadapter.errors import CompilationError
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, OperandType
from nnadapter.ir.passes import run_passes

PASSES = ("simplify", "fuse_batch_normalization", "channels_last")
"""What XLA does not do by itself, or not where weights are arguments."""

Key = tuple[int, Pack | None]
"""A constant: which operand, and what packs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What XLA made of a segment."""

    executable: Any
    """JAX's: called with the inputs and the constants."""
    constants: tuple[Any, ...]
    """On the device, in the order in which the function takes them."""
    device: Any
    """JAX's, that it runs on."""
    results: tuple[str, ...]
    """Data types of the results."""
    exported: bytes
    """The function as `jax.export` writes it: what XLA compiled, in StableHLO."""


def prepared(model: Model) -> Model:
    """The segment as it is lowered."""
    return run_passes(model, PASSES)


def compiled(model: Model, closures: Sequence[Computes], device: Any, precision: str) -> Compiled:
    """Compile a segment with known sizes.

    Args:
        model: what `prepared` gave.
        closures: what computes each operation.
        device: JAX's.
        precision: of products, as JAX calls it.

    Raises:
        CompilationError: JAX or XLA fails.
    """
    jax, keys = module(), _keys(model, closures)
    arrays = [_packed(model, key) for key in keys]
    with _translated(), own_settings(), jax.default_matmul_precision(precision):
        jitted = jax.jit(_function_of(model, closures, keys))
        inputs = [_shape(model.operands[index].type, device) for index in model.inputs]
        constants = tuple(_shape(array, device) for array in arrays)
        exported = jax.export.export(jitted, platforms=[platform_of(device)])(inputs, constants)
        # Not what was exported: JAX 0.10 never frees a megabyte for each that it compiles of it.
        executable = jitted.lower(inputs, constants).compile()
        give_back()
        return Compiled(
            executable=executable,
            constants=_placed(arrays, device),
            device=device,
            results=tuple(model.operands[index].type.dtype.value for index in model.outputs),
            exported=bytes(exported.serialize()),
        )


def compiled_again(exported: bytes, arrays: Sequence[Array], results: Sequence[str], device: Any) -> Compiled:
    """Compile what was written by `jax.export`: nothing is traced or lowered, XLA compiles as it did then.

    Args:
        exported: see `Compiled.exported`.
        arrays: the constants.
        results: data types of the results.
        device: JAX's.

    Raises:
        CompilationError: JAX or XLA fails.
    """
    jax = module()
    with _translated(), own_settings():
        function = jax.export.deserialize(bytearray(exported))
        shapes = [_shape(aval, device) for aval in function.in_avals]
        inputs, constants = jax.tree.unflatten(function.in_tree, shapes)[0]
        executable = jax.jit(function.call).lower(inputs, constants).compile()
        give_back()
        return Compiled(
            executable=executable,
            constants=_placed(arrays, device),
            device=device,
            results=tuple(results),
            exported=exported,
        )


def platform_of(device: Any) -> str:
    """What `jax.export` calls a device: `cpu`, `cuda`, `rocm`, `tpu`."""
    kind = str(device.platform)
    return str(device.client.platform_version).split()[0].lower() if kind == "gpu" else kind


def _translated() -> AbstractContextManager[None]:
    return translated("XLA did not compile the segment", "switch the device off for it", CompilationError)


def _shape(typed: Any, device: Any) -> Any:
    """What JAX is told of an operand's type, an array, or what it knows of an input itself."""
    is_type = isinstance(typed, OperandType)
    shape, dtype = (typed.dimensions, carrier(typed.dtype.array_type)) if is_type else (typed.shape, typed.dtype)
    jax = module()
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(device))


def _placed(arrays: Sequence[Array], device: Any) -> tuple[Any, ...]:
    return tuple(module().device_put(array, device) for array in arrays)


def _packed(model: Model, key: Key) -> Array:
    index, pack = key
    value = model.operands[index].value
    assert value is not None
    return carried(value if pack is None else pack(value))


def _keys(model: Model, closures: Sequence[Computes]) -> tuple[Key, ...]:
    """The constants that somebody reads, each in every form in which it is read."""
    read: list[Key] = []
    for operation, compute in zip(model.operations, closures, strict=True):
        packs = packs_of(compute)
        read += [(index, packs.get(position)) for position, index in enumerate(operation.inputs)]
    read += [(index, None) for index in model.outputs]
    return tuple(dict.fromkeys(key for key in read if key[0] != ABSENT and model.operands[key[0]].value is not None))


def _function_of(
    model: Model, closures: Sequence[Computes], keys: Sequence[Key]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The whole segment as one function of inputs and constants."""

    def segment(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        given = {key: _as_said(model, key[0], value, key[1]) for key, value in zip(keys, constants, strict=True)}
        values: dict[int, Any] = {ABSENT: None}
        for index, value in zip(model.inputs, inputs, strict=True):
            values[index] = _as_said(model, index, value)
        for operation, compute in zip(model.operations, closures, strict=True):
            packs = packs_of(compute)
            arguments = (
                given[index, packs.get(position)] if (index, packs.get(position)) in given else values[index]
                for position, index in enumerate(operation.inputs)
            )
            results = compute(*arguments)
            made = results if isinstance(results, (list, tuple)) else [results]
            values.update(zip(operation.outputs, made, strict=True))
        results = [given[index, None] if (index, None) in given else values[index] for index in model.outputs]
        return [result.astype(carrier(result.dtype)) for result in results]

    return segment


def _as_said(model: Model, index: int, value: Any, pack: Pack | None = None) -> Any:
    """What came over the border, in the data type that the model says; what was packed has one of its own."""
    dtype = model.operands[index].type.dtype.array_type
    return value if pack is not None or carrier(dtype) == dtype else value.astype(dtype)
