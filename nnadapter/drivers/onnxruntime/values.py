"""ONNX Runtime values of types that its Python interface lacks (bfloat16, float8, 4 and 2 bits), and one-node models.

Such values are copied by memory. Types below a byte are packed, first element in the lowest bits (ONNX IR
specification, "Packed data types"); numpy uses a byte each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER, QUIET
from nnadapter.onnx.wire_format import BYTES, varint_bytes
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE, Value

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.ir.operand import Array


FLOAT, HALF = 1, 10
"""Numbers in `TensorProto.DataType`."""
_IR_VERSION, _OPSET = 8, 13
_INPUTS, _OUTPUT = (b"a", b"b"), b"c"


def model_of_one(op_type: bytes, inputs: int, element_type: int, shape: Sequence[int] | None = None) -> bytes:
    """Serialize a model of one node, with the inputs `a` and, if `inputs` is 2, `b`, and the output `c`."""
    tensor = [(1, element_type)]
    if shape is not None:
        tensor.append((2, _message(*((1, _message((1, size))) for size in shape))))  # type: ignore[arg-type]
    type_ = _message((1, _message(*tensor)))
    names = _INPUTS[:inputs]
    node = _message(*((1, name) for name in names), (2, _OUTPUT), (3, b"nnadapter:0:0"), (4, op_type), (7, b""))
    values = [_message((1, name), (2, type_)) for name in (*names, _OUTPUT)]
    graph = _message((1, node), (2, b"probe"), *((11, value) for value in values[:-1]), (12, values[-1]))
    return _message((1, _IR_VERSION), (7, graph), (8, _message((1, b""), (2, _OPSET))))


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    return b"".join(
        varint_bytes(number << 3) + varint_bytes(value)
        if isinstance(value, int)
        else varint_bytes(number << 3 | BYTES) + varint_bytes(len(value)) + value
        for number, value in fields
    )


def tiny_session_options() -> onnxruntime.SessionOptions:
    """Return options for sessions of our own tiny models: without messages, on the calling thread."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = QUIET, 1
    return options


Run = Callable[[Sequence[str], Mapping[str, Any], Any], list[Any]]
"""Function of output names, feeds and run options, which returns results."""
RunInto = Callable[[Iterable[tuple[str, Any]], Iterable[tuple[str, Any]], Any], None]
"""Function that runs a session into existing arrays. It gets feeds, output arrays and run options."""
RunInPlace = Callable[[Iterable[tuple[str, Any]], Sequence[str], Any], list[Any]]
"""Function that runs a session on OrtValues. It gets feeds, output names and run options, and returns OrtValues."""

_PLAIN = frozenset(
    f"tensor({name})"
    for name in (
        *("float", "double", "float16", "string", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
_PACKED_BYTES = "tensor(float4e2m1)"
_RETURNED_AS_BYTES = MappingProxyType({"tensor(float8e4m3fn)": "float8_e4m3fn", _PACKED_BYTES: "float4_e2m1fn"})
"""Types that the Python interface returns as uint8."""


def run_of(session: onnxruntime.InferenceSession) -> Run:
    """Return a session's run(names, feeds, options) for all data types, without ONNX Runtime's Python checks."""
    if goes_by_memory(session):
        return run_by_memory(session)
    run: Run = inner_run(session)
    types = {value.name: value.type for value in session.get_outputs()}
    if _RETURNED_AS_BYTES.keys().isdisjoint(types.values()):
        return run
    return lambda names, feeds, options: [
        declared(result, types[name]) for name, result in zip(names, run(names, feeds, options), strict=True)
    ]


def goes_by_memory(session: onnxruntime.InferenceSession) -> bool:
    """Return whether runs must use OrtValues: all values are tensors, and Python lacks the data type of one."""
    types = {value.type for value in (*session.get_inputs(), *session.get_outputs())}
    return not types <= _PLAIN and all(type_.startswith("tensor(") for type_ in types)


def gives_foreign_memory(session: onnxruntime.InferenceSession) -> bool:
    """Return whether ONNX Runtime's Python API reads beyond the end of an output whose elements share bytes."""
    return any(value.type == _PACKED_BYTES for value in session.get_outputs()) and goes_by_memory(session)


def run_into_of(session: onnxruntime.InferenceSession) -> RunInto | None:
    """Return a thread-safe function that runs a session into existing contiguous arrays; None for unsupported types."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    inner = getattr(session, "_sess", None)
    if inner is None or not {value.type for value in (*session.get_inputs(), *session.get_outputs())} <= _PLAIN:
        return None
    device = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)

    def run(inputs: Iterable[tuple[str, Any]], outputs: Iterable[tuple[str, Array]], options: Any) -> None:
        binding = native.SessionIOBinding(inner)
        for name, array in inputs:
            binding.bind_input(name, array)
        for name, array in outputs:
            binding.bind_ortvalue_output(name, native.OrtValue.ortvalue_from_numpy(array, device))
        inner.run_with_iobinding(binding, options)

    return run


def run_in_place_of(session: onnxruntime.InferenceSession, place: str) -> RunInPlace:
    """Return a thread-safe function that runs a session on OrtValues, with outputs in new memory of `place`."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    from nnadapter.process.real_onnxruntime import onnxruntime

    inner, device = session._sess, onnxruntime.OrtDevice.make(place, 0)._get_c_device()

    def run(inputs: Iterable[tuple[str, Any]], outputs: Sequence[str], options: Any) -> list[Any]:
        binding = native.SessionIOBinding(inner)
        for name, value in inputs:
            binding.bind_ortvalue_input(name, value._ortvalue)
        for name in outputs:
            binding.bind_output(name, device)
        inner.run_with_iobinding(binding, options)
        return _independent_values(binding.get_outputs())

    return run


def declared(result: Any, type_: str) -> Any:
    """Return a result in its declared data type.

    The Python interface returns float8e4m3fn as uint8. It returns float4e2m1 as packed bytes, and reads beyond their
    end.
    """
    name = _RETURNED_AS_BYTES.get(type_)
    if name is None or not isinstance(result, np.ndarray) or result.dtype != np.uint8:
        return result
    return _unpacked(result.reshape(-1)[: ceil(result.size * ITEMSIZE_OF_DTYPE[name])], name, result.shape)


def run_by_memory(session: onnxruntime.InferenceSession) -> Run:
    """Return a function that runs a session on tensors of any type, by copying memory."""

    def run(names: Sequence[str], feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
        ort_values = {name: _to_ort_value(array) for name, array in feeds.items()}
        return [array_of(value) for value in session.run_with_ort_values(names, ort_values, options)]

    return run


def is_foreign(array: Any) -> bool:
    """Return whether ONNX Runtime's Python interface does not support an array."""
    return isinstance(array, np.ndarray) and array.dtype != object and is_foreign_type(array.dtype)


def is_foreign_type(dtype: np.dtype[Any]) -> bool:
    """Return whether ONNX Runtime's Python interface does not support a data type."""
    return _tensor_type(dtype.name) not in _PLAIN


def inner_run(session: onnxruntime.InferenceSession) -> Any:
    """Return a session's run without Python checks."""
    inner = getattr(session, "_sess", None)
    return inner.run if inner is not None else session.run


def output_binder(binding: onnxruntime.IOBinding) -> Callable[[str], object]:
    """Return a function that binds an output to new host memory."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    inner = getattr(binding, "_iobinding", None)
    if inner is None:
        return binding.bind_output  # type: ignore[no-any-return]
    device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
    return lambda name: inner.bind_output(name, device)


def results_of(binding: onnxruntime.IOBinding) -> list[onnxruntime.OrtValue]:
    """Return a binding's outputs, independent of later runs (needed up to ONNX Runtime 1.27)."""
    return _independent_values(binding._iobinding.get_outputs())


def _independent_values(values: Any) -> list[onnxruntime.OrtValue]:
    """Return OrtValues independent of a native vector; indexing it is faster than iteration."""
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    from nnadapter.process.real_onnxruntime import onnxruntime

    vector = native.OrtValueVector()
    for position in range(len(values)):
        vector.push_back(values[position])
    return [onnxruntime.OrtValue(vector[position]) for position in range(len(vector))]


def native_value(array: Array) -> Any:
    """Return a native OrtValue that shares the array's memory."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array)._ortvalue


def ort_value_of(result: Any, type_: str = "") -> Any:
    """Return a result as an OrtValue, sharing memory if possible; `type_` is the type of an empty list."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    if isinstance(result, np.ndarray):
        return _to_ort_value(result if result.flags.c_contiguous else np.ascontiguousarray(result))
    if hasattr(result, "dense_shape"):
        sparse = result if isinstance(result, onnxruntime.SparseTensor) else onnxruntime.SparseTensor(result)
        return onnxruntime.OrtValue.ort_value_from_sparse_tensor(sparse)
    if isinstance(result, list) and all(isinstance(item, np.ndarray) for item in result):
        return _sequence_value(result, type_)
    return result


def _sequence_value(arrays: Sequence[Array], type_: str) -> Any:
    from nnadapter.onnx.construction import build
    from nnadapter.onnx.signature import type_name
    from nnadapter.process.real_onnxruntime import onnxruntime

    values = {f"x{place}": _to_ort_value(np.ascontiguousarray(array)) for place, array in enumerate(arrays)}
    dtypes = {type_name(f"sequence({dtype})"): dtype for dtype in ELEMENT_TYPE_OF_DTYPE}
    dtype = DTYPE_OF_ELEMENT_TYPE[next(iter(values.values())).element_type()] if values else dtypes.get(type_)
    if dtype is None:
        return list(arrays)
    op_type, attributes = "SequenceConstruct", {}
    if not values:
        op_type, attributes = "SequenceEmpty", {"dtype": ELEMENT_TYPE_OF_DTYPE[dtype]}
    inputs = [Value(name, dtype, tuple(value.shape())) for name, value in values.items()]
    model = build([(op_type, list(values), ["y"], attributes)], inputs, [Value("y", f"sequence({dtype})")], {}, 17)
    contents = model.SerializeToString()
    session = onnxruntime.InferenceSession(contents, tiny_session_options(), providers=[CPU_PROVIDER])
    return session.run_with_ort_values(["y"], values)[0]


def _to_ort_value(array: Array) -> onnxruntime.OrtValue:
    from nnadapter.process.real_onnxruntime import onnxruntime

    name = array.dtype.name
    if not is_foreign(array):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), ELEMENT_TYPE_OF_DTYPE[name], "cpu")
    contents = _packed(array)
    if contents:
        ctypes.memmove(value.data_ptr(), contents, len(contents))
    return value


def array_of(value: onnxruntime.OrtValue) -> Array:
    """Return an OrtValue as array."""
    name = DTYPE_OF_ELEMENT_TYPE[value.element_type()]
    if _tensor_type(name) in _PLAIN:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    nbytes = ceil(prod(shape) * ITEMSIZE_OF_DTYPE[name])
    contents = ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b""
    return _unpacked(np.frombuffer(contents, np.uint8), name, shape)


def _tensor_type(dtype: str) -> str:
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return f"tensor({name})"


def _packed(array: Array) -> bytes:
    if ITEMSIZE_OF_DTYPE[array.dtype.name] >= 1:
        return array.tobytes()
    from onnx import numpy_helper  # lazy: few models have such types

    return numpy_helper.from_array(array).raw_data


def _unpacked(contents: Array, name: str, shape: tuple[int, ...]) -> Array:
    if ITEMSIZE_OF_DTYPE[name] >= 1:
        return contents.view(name).reshape(shape).copy()
    from onnx import TensorProto, numpy_helper

    tensor = TensorProto(data_type=ELEMENT_TYPE_OF_DTYPE[name], dims=shape, raw_data=contents.tobytes())
    return np.array(numpy_helper.to_array(tensor))
