"""Compilation of a segment to one XLA function: packed constants, 4-bit tensors and donated inputs.

JAX 0.10 refuses 4-bit arguments, so 4-bit tensors become bytes. Source: `donate_argnums` of `jax.jit`.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from nnadapter.drivers.table_lowering import Computes
from nnadapter.drivers.xla.engine import module, own_settings, run_translated, translated
from nnadapter.errors import CompilationError
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, OperandType, dtype_name
from nnadapter.ir.operations import PRODUCTS
from nnadapter.ir.passes import run_passes
from nnadapter.process.resources import memoize, new_lock
from nnadapter.records import dataclass

_CARRIERS: Mapping[str, np.dtype[Any]] = {"int4": np.dtype(np.int8), "uint4": np.dtype(np.uint8)}


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type in which values of `dtype` are passed to JAX: bytes for 4-bit integers."""
    return _CARRIERS.get(dtype_name(dtype), dtype)


def carried(array: Array) -> Array:
    """Convert 4-bit integers to bytes, which JAX accepts."""
    return array.astype(_CARRIERS[name]) if (name := dtype_name(array.dtype)) in _CARRIERS else array


def trim_heap() -> None:
    """Return free heap memory to the system if possible; slow."""
    trim = _trim()
    if trim is not None:
        trim(0)


@memoize(1)
def _trim() -> Callable[[int], Any] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


Pack = Callable[[Array], Array]


class Packing:
    """Compute function with constants in its own layout. `packs` maps input positions to conversions."""

    def __init__(self, compute: Computes, packs: Mapping[int, Pack]) -> None:
        self._compute, self.packs = compute, packs

    def __call__(self, *inputs: Any) -> Any:
        return self._compute(*inputs)


def packs_of(compute: Computes) -> Mapping[int, Pack]:
    """Return the functions that pack constants, by input position; empty if none is packed."""
    return compute.packs if isinstance(compute, Packing) else {}


_MOST_VARIANTS = 16


class Donating:
    """Variants of a compiled segment that overwrite different donated inputs. Thread-safe."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._lock = new_lock()
        self._variants: dict[tuple[int, ...], Any] = {}

    def start(self, inputs: Sequence[Any], donations: Sequence[int]) -> Sequence[Any] | None:
        key = tuple(donations)
        with run_translated(), own_settings():
            with self._lock:
                if key not in self._variants and len(self._variants) < _MOST_VARIANTS:
                    self._variants[key] = self._variant_or_none(key)
                variant = self._variants.get(key)
            if variant is None:
                return None
            executable, donated = variant
            retained = [value for position, value in enumerate(inputs) if position not in donated]
            results: Sequence[Any] = executable(
                [inputs[index] for index in donated], retained, self._compiled.constants
            )
            return results

    def _variant_or_none(self, donations: tuple[int, ...]) -> tuple[Any, tuple[int, ...]] | None:
        with suppress(CompilationError), _translated():
            return self._variant(donations)
        return None

    def _variant(self, donations: tuple[int, ...]) -> tuple[Any, tuple[int, ...]] | None:
        jax, compiled = module(), self._compiled
        function, inputs, constants = _imported(compiled.exported, compiled.device)
        donated = usable(donations, [_kind(spec) for spec in inputs], [_kind(spec) for spec in function.out_avals])
        if not donated:
            return None

        def segment(donated_values: Sequence[Any], retained: Sequence[Any], constants: Sequence[Any]) -> Any:
            retained_values = iter(retained)
            by_position = dict(zip(donated, donated_values, strict=True))
            every = [
                by_position[place] if place in by_position else next(retained_values) for place in range(len(inputs))
            ]
            return function.call(every, constants)

        retained = [spec for position, spec in enumerate(inputs) if position not in donated]
        jitted = jax.jit(segment, donate_argnums=(0,))
        return jitted.lower([inputs[index] for index in donated], retained, constants).compile(), donated


def usable(donations: Sequence[int], inputs: Sequence[Any], results: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of donated inputs that results of the same type can overwrite, one input per result."""
    available, reusable = Counter(results), []
    for position in donations:
        if available[inputs[position]]:
            available[inputs[position]] -= 1
            reusable.append(position)
    return tuple(reusable)


def _kind(typed: Any) -> tuple[str, tuple[int, ...]]:
    return str(typed.dtype), tuple(typed.shape)


PASSES = ("simplify", "fuse_batch_normalization", "channels_last")
"""Passes that XLA lacks, or does not apply to weights that are arguments."""

Key = tuple[int, Pack | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Segment compiled by XLA."""

    executable: Any
    constants: tuple[Any, ...]
    device: Any
    results: tuple[str, ...]
    exported: bytes


def prepared(model: Model) -> Model:
    """Return a model after the passes that precede lowering."""
    return run_passes(model, PASSES)


def compiled(model: Model, closures: Sequence[Computes], device: Any, precision: str) -> Compiled:
    """Compile a prepared segment with static shapes; raise CompilationError if JAX or XLA fails.

    `precision` is a name of JAX. CPUs ignore it, so for `default` the function rounds operands of products as TPUs do.
    """
    jax, keys = module(), _keys(model, closures)
    arrays = [_packed(model, key) for key in keys]
    with _translated(), own_settings(), jax.default_matmul_precision(precision):
        rounds = precision == "default" and device.platform == "cpu"
        jitted = jax.jit(_function_of(model, closures, keys, PRODUCTS if rounds else frozenset()))
        inputs = [_shape(model.type_at(index), device) for index in model.inputs]
        constants = tuple(_shape(array, device) for array in arrays)
        exported = jax.export.export(jitted, platforms=[platform_of(device)])(inputs, constants)
        # compiling the exported function leaks memory in JAX 0.10
        executable = jitted.lower(inputs, constants).compile()
        results = tuple(model.type_at(index).dtype.value for index in model.outputs)
        return _compiled(executable, arrays, device, results, bytes(exported.serialize()))


def compiled_again(exported: bytes, arrays: Sequence[Array], results: Sequence[str], device: Any) -> Compiled:
    """Compile a serialized function from `jax.export`; raise CompilationError if JAX or XLA fails."""
    with _translated(), own_settings():
        function, inputs, constants = _imported(exported, device)
        executable = module().jit(function.call).lower(inputs, constants).compile()
        return _compiled(executable, arrays, device, tuple(results), exported)


def _imported(exported: bytes, device: Any) -> tuple[Any, Any, Any]:
    jax = module()
    function = jax.export.deserialize(bytearray(exported))
    shapes = [_shape(aval, device) for aval in function.in_avals]
    inputs, constants = jax.tree.unflatten(function.in_tree, shapes)[0]
    return function, inputs, constants


def _compiled(
    executable: Any, arrays: Sequence[Array], device: Any, results: tuple[str, ...], exported: bytes
) -> Compiled:
    trim_heap()
    constants = tuple(module().device_put(array, device) for array in arrays)
    return Compiled(executable=executable, constants=constants, device=device, results=results, exported=exported)


def platform_of(device: Any) -> str:
    """Return a device's platform for `jax.export`: `cpu`, `cuda`, `rocm`, `tpu`."""
    kind = str(device.platform)
    return str(device.client.platform_version).split()[0].lower() if kind == "gpu" else kind


def _translated() -> AbstractContextManager[None]:
    return translated("XLA did not compile the segment", "choose another device for it", CompilationError)


def _shape(typed: Any, device: Any) -> Any:
    is_type = isinstance(typed, OperandType)
    shape, dtype = (typed.dimensions, carrier(typed.dtype.array_type)) if is_type else (typed.shape, typed.dtype)
    jax = module()
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(device))


def _packed(model: Model, key: Key) -> Array:
    index, pack = key
    value = model.operands[index].value
    assert value is not None
    return carried(value if pack is None else pack(value))


def _keys(model: Model, closures: Sequence[Computes]) -> tuple[Key, ...]:
    read: list[Key] = []
    for operation, compute in zip(model.operations, closures, strict=True):
        packs = packs_of(compute)
        read += [(index, packs.get(position)) for position, index in enumerate(operation.inputs)]
    read += [(index, None) for index in model.outputs]
    return tuple(dict.fromkeys(key for key in read if key[0] != ABSENT and model.operands[key[0]].value is not None))


def _function_of(
    model: Model, closures: Sequence[Computes], keys: Sequence[Key], rounded: Collection[str]
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    def segment(inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        values: dict[Key, Any] = {
            (index, pack): _in_model_type(model, index, value, pack)
            for (index, pack), value in zip(keys, constants, strict=True)
        }
        values[ABSENT, None] = None
        for index, value in zip(model.inputs, inputs, strict=True):
            values[index, None] = _in_model_type(model, index, value)
        for operation, compute in zip(model.operations, closures, strict=True):
            packs = packs_of(compute)
            operands = [values[index, packs.get(position)] for position, index in enumerate(operation.inputs)]
            if operation.type in rounded:
                operands[:2] = map(_to_bfloat16, operands[:2])  # not the bias
            results = compute(*operands)
            outputs = results if isinstance(results, (list, tuple)) else [results]
            values.update(zip(((index, None) for index in operation.outputs), outputs, strict=True))
        model_outputs = (values[index, None] for index in model.outputs)
        return [result.astype(carrier(result.dtype)) for result in model_outputs]

    return segment


def _to_bfloat16(value: Any) -> Any:
    """Round a float32 value to bfloat16, but keep its data type; return others unchanged."""
    is_float32 = getattr(value, "dtype", None) == np.float32
    return module().lax.reduce_precision(value, exponent_bits=8, mantissa_bits=7) if is_float32 else value


def _in_model_type(model: Model, index: int, value: Any, pack: Pack | None = None) -> Any:
    dtype = model.type_at(index).dtype.array_type
    return value if pack is not None or carrier(dtype) == dtype else value.astype(dtype)
