"""Constant folding: exact results by numpy, others by ONNX Runtime.

numpy handles constants, movement and integers, enough for most shape arithmetic without importing ONNX Runtime. Shape
and Size need only types. Gather and Slice of a partially known shape are folded if they read static sizes only.
"""

from __future__ import annotations

import ctypes
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil, prod
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.construction import array_info, initializer_of, model_of, untyped
from nnadapter.onnx.graphs import RUNNING_GRAPHS, constant_value
from nnadapter.onnx.model import OnnxModel, OnnxNode
from nnadapter.onnx.normal_form import stamp_down
from nnadapter.onnx.onnxruntime_limits import QUIET, onnxruntime_limits
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ITEMSIZE_OF_DTYPE, Graph, Unsupported, Value

_Compute = Callable[[OnnxNode, Sequence[Array]], Any]


def plain_result(node: OnnxNode, constants: Mapping[str, Array]) -> Array | None:
    """Return a node's result if all inputs are known and numpy computes it exactly, otherwise None."""
    make = _MAKES.get(node.op_type)
    if make is None or len(node.outputs) != 1 or not all(name in constants for name in node.inputs):
        return None
    arrays = [constants[name] for name in node.inputs]
    if not all(map(_is_plain, arrays)):
        return None
    try:
        result = np.asarray(make(node, arrays))
    except Exception:  # noqa: BLE001  numpy raises many kinds
        return None
    return result if _is_plain(result) else None


def _is_plain(array: Array) -> bool:
    return array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1


def _constant(node: OnnxNode, _: Sequence[Array]) -> Any:
    ((name, value),) = node.attributes.items()
    return value if name == "value" else np.array(value, _STATED[name])


def _reshape(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, sizes = arrays
    is_literal = node.integer("allowzero", 0)
    return array.reshape([array.shape[at] if not (size or is_literal) else size for at, size in enumerate(sizes)])


def _squeeze(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    has_axes = len(arrays) > 1 or node.attributes
    return np.squeeze(arrays[0], _axes(node, arrays) if has_axes else None)


def _unsqueeze(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    return np.expand_dims(arrays[0], _axes(node, arrays))


def _axes(node: OnnxNode, arrays: Sequence[Array]) -> tuple[int, ...]:
    axes = tuple(arrays[1].tolist()) if len(arrays) > 1 else node.integers("axes")
    if not axes:
        raise ValueError("the list of axes is empty, which may mean all axes or none")
    return axes


def _concat(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("inputs differ in data type, which numpy would convert")
    return np.concatenate(arrays, node.integer("axis"))


def _slice(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, *bounds = arrays
    starts, ends, *axes_and_steps = (bound.tolist() for bound in bounds)
    axes = axes_and_steps[0] if axes_and_steps else range(len(starts))
    steps = axes_and_steps[1] if len(axes_and_steps) > 1 else [1] * len(starts)
    places = [range(array.ndim)[axis] for axis in axes]
    if len(set(places)) < len(places) or min(steps) < 1:
        raise ValueError("numpy cannot slice an axis twice, and treats bounds of negative steps differently")
    slices = [slice(None)] * array.ndim
    for place, *bounds_of_axis in zip(places, starts, ends, steps, strict=True):
        slices[place] = slice(*bounds_of_axis)
    return array[tuple(slices)]


def _gather(node: OnnxNode, arrays: Sequence[Array]) -> Any:
    array, indices = arrays
    return array.take(indices, node.integer("axis", 0))


def _transpose(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    return np.transpose(arrays[0], node.integers("perm"))


def _cast(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    (array,), to = arrays, np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to")))
    if array.dtype.kind not in "biu" or to not in _OF_INTEGERS:
        raise ValueError("a cast of reals out of range depends on the machine")
    return array.astype(to)


def _expand(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, sizes = arrays
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(sizes.tolist())))


def _tile(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, repeats = arrays
    if repeats.shape != (array.ndim,):
        raise ValueError("repeats do not have one number for each axis")
    return np.tile(array, repeats.tolist())


def _range(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    _check_integers(arrays)
    return np.arange(*(array.item() for array in arrays), dtype=arrays[0].dtype)


def _where(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    chosen, *alternatives = arrays
    if alternatives[0].dtype != alternatives[1].dtype:
        raise ValueError("the two alternatives differ in data type, which numpy would convert")
    return np.where(chosen, *alternatives)


def _of_integers(compute: Callable[..., Any]) -> _Compute:
    def make(node: OnnxNode, arrays: Sequence[Array]) -> Any:
        _check_integers(arrays)
        if node.since_version < _BROADCASTING:
            raise ValueError("before opset 7, the op broadcasts by its attributes axis and broadcast, unlike numpy")
        with np.errstate(over="ignore"):  # overflow wraps around, as in ONNX Runtime
            return compute(*arrays)

    return make


def _quotient(dividend: Array, divisor: Array) -> Any:
    if (dividend < 0).any() or (divisor < 1).any():
        raise ValueError("the dividend is negative or the divisor below 1, where numpy's // differs from ONNX's Div")
    return dividend // divisor


def _check_integers(arrays: Sequence[Array]) -> None:
    if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype.kind not in "iu":
        raise ValueError("the inputs are not integers of one data type")


_BROADCASTING = 7
"""Version since which numpy's broadcasting applies."""
_STATED = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
_OF_INTEGERS = frozenset(map(np.dtype, ("bool", "int32", "int64", "float32", "float64")))
_MAKES: Mapping[str, _Compute] = {
    "Add": _of_integers(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "Div": _of_integers(_quotient),
    "Equal": _of_integers(np.equal),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _of_integers(np.greater),
    "GreaterOrEqual": _of_integers(np.greater_equal),
    "Identity": lambda _, arrays: arrays[0],
    "Less": _of_integers(np.less),
    "LessOrEqual": _of_integers(np.less_equal),
    "Mul": _of_integers(np.multiply),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _of_integers(np.subtract),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def evaluate(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    """Return the values `output_names` that the nodes at `positions` compute from `constants`."""
    plain: dict[str, Array] = {}
    arrays_by_name: Mapping[str, Array] = ChainMap(plain, constants)  # type: ignore[arg-type]
    pending_positions = []
    for position in positions:
        node = read.nodes[position]
        result = plain_result(node, arrays_by_name)
        if result is None:
            pending_positions.append(position)
        else:
            plain[node.outputs[0]] = freeze(result)
    arrays = {name: plain[name] for name in output_names if name in plain}
    if len(arrays) < len(output_names):
        arrays.update(
            _evaluated(read, pending_positions, arrays_by_name, [name for name in output_names if name not in plain])
        )
    return arrays


def _evaluated(
    read: OnnxModel, positions: Sequence[int], constants: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    nodes = [read.graph.nodes[position] for position in positions]
    produced_names = {name for node in nodes for name in node.outputs}
    feeds = {name: constants[name] for node in nodes for name in node.inputs if name and name not in produced_names}
    try:
        arrays = _run(read, positions, feeds, output_names)
    except Exception:  # noqa: BLE001  on any failure, fall back to the slower evaluator
        return _one_by_one(read, positions, feeds, output_names)
    return {
        name: freeze(array) for name, array in zip(output_names, arrays, strict=True) if isinstance(array, np.ndarray)
    }


def _model(
    read: OnnxModel, positions: Iterable[int], feeds: Mapping[str, object], output_names: Iterable[str]
) -> onnx.ModelProto:
    inputs = (array_info(name, value) for name, value in feeds.items())
    nodes = (read.model.graph.node[position] for position in positions)
    return model_of(read.model, nodes, inputs, untyped(output_names), ir_version=onnx.IR_VERSION)


def _run(
    read: OnnxModel, positions: Sequence[int], feeds: Mapping[str, Array], output_names: Sequence[str]
) -> Sequence[object]:
    """Run nodes in ONNX Runtime; arrays that its Python interface rejects become initializers."""
    from nnadapter.process.real_onnxruntime import onnxruntime  # often not needed

    passed = {name: array for name, array in feeds.items() if array.dtype.kind in "OUS" or array.dtype.isbuiltin == 1}
    model = _model(read, positions, passed, output_names)
    model.graph.initializer.extend(initializer_of(name, feeds[name]) for name in feeds.keys() - passed.keys())

    opsets, ir_version = onnxruntime_limits()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = 1
    # Every node runs once; optimization would evaluate it first.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stamped = stamp_down(model, opsets, ir_version)
    if isinstance(stamped, Unsupported):
        raise InvalidModelError(stamped.detail)
    session = onnxruntime.InferenceSession(stamped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    if all(_is_passed(output.type) for output in session.get_outputs()):
        results: Sequence[object] = session.run(None, passed)
        return results
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in passed.items()}
    return [_array(value) if value.is_tensor() else None for value in session.run_with_ort_values(None, values)]


def _is_passed(type_: str) -> bool:
    """Return whether ONNX Runtime's Python interface returns a type unchanged.

    It returns float8e4m3fn and float4e2m1 as uint8, and rejects other types that numpy lacks.
    """
    return not any(name in type_ for name in ("float8", "float4", "bfloat16", "int4", "int2"))


def _array(value: Any) -> Array:
    element, shape = value.element_type(), value.shape()
    if _is_passed(value.data_type()):
        return np.asarray(value.numpy())
    size = ceil(prod(shape) * ITEMSIZE_OF_DTYPE[DTYPE_OF_ELEMENT_TYPE[element]])
    contents = ctypes.string_at(value.data_ptr(), size) if size else b""
    tensor = onnx.TensorProto(data_type=element, dims=shape, raw_data=contents)
    return np.asarray(numpy_helper.to_array(tensor))


def _one_by_one(
    read: OnnxModel, positions: Sequence[int], feeds: Mapping[str, Array], output_names: Sequence[str]
) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    environment: dict[str, object] = dict(feeds)
    for position in positions:
        node = read.nodes[position]
        names = dict.fromkeys(filter(None, node.inputs))
        if not all(name in environment for name in names):
            continue
        node_feed, node_outputs = {name: environment[name] for name in names}, [name for name in node.outputs if name]
        values = {
            name: constant_value(name, array) for name, array in node_feed.items() if isinstance(array, np.ndarray)
        }
        try:
            if read.operators.contradiction(node, values, {}) is not None:
                continue  # the evaluator might compute it anyway
            # For a bare node, the evaluator would assume the newest opset.
            results = ReferenceEvaluator(_model(read, [position], node_feed, node_outputs)).run(None, node_feed)
        except Exception:  # noqa: BLE001  a node that cannot be evaluated stays in the graph
            continue
        environment.update(
            (name, result) for name, result in zip(node_outputs, results, strict=True) if result is not None
        )
    # A list is a sequence: nodes may read it, but it is no constant.
    arrays = {
        name: environment[name] for name in output_names if isinstance(environment.get(name), np.ndarray | np.generic)
    }
    return {name: freeze(np.asarray(result)) for name, result in arrays.items()}


_Sizes = Sequence[int | str | None]
_SINCE_INPUTS = 10
"""Version since which Slice has bounds as inputs."""
_STEP = 3


def measured(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> Array | None:
    """Return the result of Shape or Size for known sizes, otherwise None."""
    if not node.is_standard:
        return None
    if node.op_type == "Shape":
        return _of_numbers(_shape(node, values, constants))
    shape = _dimensions(node, values, constants) if node.op_type == "Size" else None
    return None if shape is None or not _are_numbers(shape) else _read_only(prod(cast("Sequence[int]", shape)))


def taken_sizes(
    read: OnnxModel, index: int, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Array | None:
    """Return the result of a Gather or Slice that reads only static sizes of a Shape."""
    node = read.nodes[index]
    take = _TAKING.get(node.op_type) if node.is_standard else None
    position = read.graph.producer.get(node.inputs[0]) if take is not None else None
    if take is None or position is None:
        return None
    source = read.nodes[position]
    is_shape = source.op_type == "Shape" and source.is_standard
    sizes = _shape(source, values, constants) if is_shape else None
    return None if sizes is None else take(node, sizes, constants)


def _dimensions(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> _Sizes | None:
    name = node.inputs[0]
    return constants[name].shape if name in constants else values[name].shape if name in values else None


def _shape(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> _Sizes | None:
    dimensions = _dimensions(node, values, constants)
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return None if dimensions is None else dimensions[cast("int", start) : cast("int | None", end)]


def _gathered(node: OnnxNode, sizes: _Sizes, constants: Mapping[str, Array]) -> Array | None:
    indices = constants.get(node.inputs[1])
    if indices is None or any(not -len(sizes) <= index < len(sizes) for index in indices.reshape(-1).tolist()):
        return None
    gathered_sizes = _of_numbers([sizes[index] for index in indices.reshape(-1).tolist()])
    return None if gathered_sizes is None else _read_only(gathered_sizes.reshape(indices.shape))


def _sliced(node: OnnxNode, sizes: _Sizes, constants: Mapping[str, Array]) -> Array | None:
    bound_arrays = [constants.get(name) if name else None for name in node.inputs[1:]]
    if node.since_version < _SINCE_INPUTS or any(array is not None and array.size != 1 for array in bound_arrays):
        return None
    bounds = [None if array is None else int(array.reshape(-1)[0]) for array in (*bound_arrays, None, None)]
    missing = any(name and array is None for name, array in zip(node.inputs[1:], bound_arrays, strict=True))
    step = 1 if bounds[_STEP] is None else bounds[_STEP]
    return None if missing or not step else _of_numbers(sizes[bounds[0] : bounds[1] : step])


_TAKING = {"Gather": _gathered, "Slice": _sliced}


def _of_numbers(sizes: _Sizes | None) -> Array | None:
    return None if sizes is None or not _are_numbers(sizes) else _read_only(np.array(sizes, np.int64))


def _are_numbers(sizes: _Sizes) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _read_only(sizes: int | Array) -> Array:
    array = np.asarray(sizes, np.int64)
    array.flags.writeable = False
    return array


_UNKNOWN_SIZE_BYTES = 1 << 20
"""Maximum input bytes for folding NonZero, Unique and Compress."""

_SELECTING = frozenset(("NonZero", "Unique", "Compress"))
_NEVER_FOLDED = frozenset(
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"]
)
_DEQUANTIZING = "DequantizeLinear"
"""Op that is folded only on request, since it is fused into integer operations."""


def is_known(graph: Graph, index: int, values: Mapping[str, Value]) -> bool:
    """Return whether all result shapes of a node are static."""
    return all(name in values and values[name].static_shape is not None for name in graph.nodes[index].outputs if name)


def may_fold(read: OnnxModel, index: int, dequantizing: Collection[int] = ()) -> bool:
    """Return whether a node is standard and deterministic, without subgraphs.

    DequantizeLinear must be in `dequantizing`.
    """
    node = read.nodes[index]
    return (
        node.is_standard
        and (node.op_type != _DEQUANTIZING or index in dequantizing)
        and node.op_type not in _NEVER_FOLDED
        and node.op_type not in RUNNING_GRAPHS
        and not read.graph.nodes[index].captured
    )


def result_bytes(node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]) -> float:
    """Return the bytes of a node's results, possibly estimated, infinite if unknown."""
    sizes = [values[name].nbytes if name in values else None for name in node.outputs if name]
    if all(size is not None for size in sizes):
        return sum(size for size in sizes if size is not None)
    inputs = sum(constants[name].nbytes for name in node.inputs if name in constants)
    selects = node.op_type in _SELECTING and inputs <= _UNKNOWN_SIZE_BYTES
    return inputs * 8 if selects else float("inf")


class Folding:
    """Folding of one graph; nodes with known inputs are queued and evaluated in batches."""

    def __init__(
        self, read: OnnxModel, constants: Mapping[str, Array], budget: float, dequantizing: Collection[int] = ()
    ) -> None:
        """Limit the bytes of results to `budget`. Of DequantizeLinear nodes, fold only `dequantizing`."""
        self._read = read
        self._dequantizing = dequantizing
        self.folded: dict[str, Array] = {}
        self._known_before = constants
        self.known: Mapping[str, Array] = ChainMap(self.folded, constants)  # type: ignore[arg-type]
        self.evaluated: set[int] = set()
        """Nodes whose results are in `folded`."""
        self._budget = budget
        self._waiting: list[int] = []
        self._promised: set[str] = set()

    def measure(self, index: int, values: Mapping[str, Value]) -> bool:
        return self._keep(index, measured(self._read.nodes[index], values, self.known))

    def take_sizes(self, index: int, values: Mapping[str, Value]) -> bool:
        return index not in self.evaluated and self._keep(index, taken_sizes(self._read, index, values, self.known))

    def _keep(self, index: int, sizes: Array | None) -> bool:
        if sizes is not None:
            self.folded[self._read.nodes[index].outputs[0]] = sizes
            self.evaluated.add(index)
        return sizes is not None

    def await_evaluation(self, index: int, values: Mapping[str, Value]) -> None:
        """Queue a node if foldable, in budget, and with known or queued inputs."""
        if not self._reads_known(index) or not may_fold(self._read, index, self._dequantizing):
            return
        node = self._read.nodes[index]
        size = result_bytes(node, values, self.known)
        if size <= self._budget:
            self._budget -= size
            self._waiting.append(index)
            self._promised.update(filter(None, node.outputs))

    def can_evaluate(self, index: int) -> bool:
        """Return whether a node is foldable, has known or queued inputs, and is neither folded nor queued."""
        is_new = index not in self.evaluated and self._promised.isdisjoint(self._read.nodes[index].outputs)
        return is_new and self._reads_known(index) and may_fold(self._read, index, self._dequantizing)

    def _reads_known(self, index: int) -> bool:
        for name in self._read.nodes[index].inputs:
            if name and name not in self._known_before and name not in self.folded and name not in self._promised:
                return False
        return True

    def is_awaited(self, index: int) -> bool:
        return not self._promised.isdisjoint(self._read.graph.nodes[index].reads)

    def evaluate(self) -> None:
        """Evaluate all queued nodes, and drop results that only these nodes read."""
        graph, inside = self._read.graph, frozenset(self._waiting)
        outputs = frozenset(graph.outputs)
        result_names = [
            name
            for index in self._waiting
            for name in graph.nodes[index].outputs
            if name in outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
        ]
        results = evaluate(self._read, self._waiting, self.known, result_names) if inside else {}
        self.folded.update(results)
        self.evaluated |= _ancestors(graph, results, inside)
        self._waiting, self._promised = [], set()


def _ancestors(graph: Graph, names: Iterable[str], inside: frozenset[int]) -> frozenset[int]:
    positions: set[int] = set()
    pending = list(names)
    while pending:
        index = graph.producer.get(pending.pop())
        if index in inside and index not in positions:
            positions.add(index)
            pending.extend(graph.nodes[index].reads)
    return frozenset(positions)
