"""Cases for ONNX devices: nodes, boundary shapes, random graphs, invalid models, onnx's operator tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from nnadapter.candidates.conversions import converted, prepare
from nnadapter.candidates.segments import OnnxParts
from nnadapter.drivers import ModelForm, SegmentModel, Unsupported
from nnadapter.errors import NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.preparation.prepare import Specialized, specialize
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass
from nnadapter.session.session import InferenceSession
from nnadapter.testing.ir_cases import refused
from nnadapter.testing.subjects import Bench, Case, Outcome, Precision, SkippedOutcome, Subject, by_band

OPSET, _IR_VERSION = 17, 8
_DYNAMIC_DIMENSION = "size"
_DIMENSIONS = ((3, 4), (2, 3, 4), (1, 3, 5, 6), (2, 2, 4, 4), (7,))
Node = tuple[str, Mapping[str, Any], int, tuple[Array, ...]]
"""Op type, attributes, number of inputs after the first (all with its shape), and constant inputs."""
Make = Callable[[tuple[int, ...]], Node | None]
"""Input dimensions -> node; None if impossible."""


def _plain(op_type: str, more: int = 0, least: int = 0, **attributes: Any) -> Make:
    return lambda dimensions: (op_type, attributes, more, ()) if len(dimensions) >= least else None


def _matrix(dimensions: tuple[int, ...]) -> Node | None:
    if len(dimensions) < 2:
        return None
    weights = np.linspace(-1, 1, dimensions[-1] * 3, dtype=np.float32).reshape(dimensions[-1], 3)
    return "MatMul", {}, 0, (weights,)


def _reshape(dimensions: tuple[int, ...]) -> Node | None:
    return ("Reshape", {}, 0, (np.asarray([-1]),)) if 0 not in dimensions else None


def _transpose(dimensions: tuple[int, ...]) -> Node | None:
    return ("Transpose", {"perm": tuple(reversed(range(len(dimensions))))}, 0, ()) if dimensions else None


def _convolution(dimensions: tuple[int, ...]) -> Node | None:
    if len(dimensions) != 4 or 0 in dimensions:
        return None
    weights = np.linspace(-1, 1, 2 * dimensions[1] * 9, dtype=np.float32).reshape(2, dimensions[1], 3, 3)
    return "Conv", {"pads": (1, 1, 1, 1)}, 0, (weights, np.asarray([0.5, -0.5], np.float32))


def _pool(op_type: str) -> Make:
    attributes = {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}
    return lambda dimensions: (op_type, attributes, 0, ()) if len(dimensions) == 4 and 0 not in dimensions else None


def _slice(dimensions: tuple[int, ...]) -> Node | None:
    if not dimensions or dimensions[-1] < 2:
        return None
    return "Slice", {}, 0, tuple(np.asarray([number]) for number in (1, dimensions[-1], -1))


NODES: Mapping[str, Make] = MappingProxyType(
    {
        **{op: _plain(op) for op in ("Relu", "Abs", "Neg", "Tanh", "Sigmoid", "Floor", "Erf", "LeakyRelu", "Identity")},
        **{op: _plain(op, more=1) for op in ("Add", "Sub", "Mul", "Max", "Min")},
        "Softmax": _plain("Softmax", least=1, axis=-1),
        "Concat": _plain("Concat", more=1, least=1, axis=0),
        "ReduceMean": _plain("ReduceMean", least=1, axes=(-1,), keepdims=1),
        "ReduceMax": _plain("ReduceMax", least=1, axes=(0,), keepdims=0),
        "MatMul": _matrix,
        "Reshape": _reshape,
        "Transpose": _transpose,
        "Slice": _slice,
        "Conv": _convolution,
        "MaxPool": _pool("MaxPool"),
        "AveragePool": _pool("AveragePool"),
    }
)


def of_op(bench: Bench, random: Random, op_type: str, dimensions: tuple[int, ...]) -> Subject | None:
    """Return a subject for one node; None if the node's result is undefined."""
    return _grown(bench.settings.precision, random, dimensions, [op_type])


def of_many_nodes(bench: Bench, random: Random, count: int) -> Subject | None:
    """Return a subject with a random graph of supported ops, or None if that fails."""
    op_types = ops_taken(bench)
    dimensions = random.choice(_DIMENSIONS)
    chosen = [random.choice(op_types) for _ in range(count)] if op_types else []
    return _grown(bench.settings.precision, random, dimensions, chosen) if chosen else None


def with_dynamic_dimension(bench: Bench, random: Random, op_types: Sequence[str]) -> DynamicOnnxModel | None:
    """Return a model with one dynamic input axis; None if impossible."""
    dimensions = random.choice(_DIMENSIONS)
    graph = _Graph(random, dimensions)
    for op_type in op_types:
        graph.add(op_type)
    if not graph.nodes:
        return None
    axis = random.randrange(len(dimensions))
    return DynamicOnnxModel(bench.settings.precision, graph.model(), graph.model(open_axis=axis), dimensions, axis)


def ops_taken(bench: Bench) -> list[str]:
    """Return the op types that the device supports; memoized."""
    if "ops" not in bench.notes:
        small = {op: of_op(bench, Random(op), op, (1, 2, 3, 4)) for op in NODES}
        bench.notes["ops"] = [op for op, subject in small.items() if subject and bench.takes(subject.model)]
    return list(bench.notes["ops"])


@dataclass(frozen=True)
class DynamicOnnxModel:
    """Model with one dynamic axis of its input `x`."""

    precision: Precision
    closed: onnx.ModelProto
    model: onnx.ModelProto
    dimensions: tuple[int, ...]
    axis: int

    def at(self, size: int) -> Subject | None:
        """Return the model at this size, with ONNX Runtime's results; None if it fails."""
        dimensions = (*self.dimensions[: self.axis], size, *self.dimensions[self.axis + 1 :])
        generator = np.random.default_rng(size)
        feed = generator.uniform(-2, 2, dimensions).astype(np.float32)
        try:
            with InferenceSession(self.model, devices="cpu") as session:
                expected = session.run(None, {"x": feed})
        except NNAdapterError:
            return None
        return by_band(self.model, [node.op_type for node in self.model.graph.node], [feed], expected, self.precision)


def of_one_node(bench: Bench, dimensions: tuple[int, ...]) -> Subject | None:
    """Return a subject with one node of the first supported op, or None if impossible."""
    op_types = ops_taken(bench)
    return of_op(bench, Random(0), op_types[0], dimensions) if op_types else None


def one_input(bench: Bench, dimensions: tuple[int, ...]) -> onnx.ModelProto | None:
    """Return a model of the first supported op without computing results, for very large dimensions."""
    op_types = ops_taken(bench)
    if not op_types:
        return None
    graph = _Graph(Random(0), dimensions)
    graph.add(op_types[0])
    return graph.model(types_only=True)


class _Graph:
    def __init__(self, random: Random, dimensions: tuple[int, ...]) -> None:
        self._random = random
        self.nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._shapes = {"x": dimensions}
        self._read: set[str] = set()

    def add(self, op_type: str) -> bool:
        source = self._random.choice(list(self._shapes)[-2:])
        dimensions = self._shapes[source]
        node = NODES[op_type](dimensions)
        if node is None:
            return False
        name, attributes, more, constants = node
        like = [value_name for value_name, shape in self._shapes.items() if shape == dimensions]
        inputs = [source, *(self._random.choice(like) for _ in range(more))]
        self._read.update(inputs)
        for constant in constants:
            inputs.append(f"c{len(self._constants)}")
            self._constants.append(numpy_helper.from_array(constant, inputs[-1]))
        output = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(name, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        self._shapes[output] = _shape_of(self.model(), output)
        return True

    def model(self, *, types_only: bool = False, open_axis: int | None = None) -> onnx.ModelProto:
        result_names = [output for node in self.nodes for output in node.output]
        shapes: dict[str, Sequence[int | str | None] | None] = {**self._shapes}
        if types_only:
            shapes = dict.fromkeys((*result_names, "x"), self._shapes["x"])
        if open_axis is not None:
            shapes = {name: (None,) * len(shape) for name, shape in self._shapes.items()}
            shapes["x"] = [
                _DYNAMIC_DIMENSION if axis == open_axis else size for axis, size in enumerate(self._shapes["x"])
            ]
        outputs = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes.get(name))
            for name in result_names
            if name not in self._read
        ]
        graph_input = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shapes["x"])
        graph = helper.make_graph(self.nodes, "conformance", [graph_input], outputs, self._constants)
        return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])


def _shape_of(model: onnx.ModelProto, name: str) -> tuple[int, ...]:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    value = next(output for output in inferred.graph.output if output.name == name)
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)


def _grown(
    precision: Precision, random: Random, dimensions: tuple[int, ...], op_types: Sequence[str]
) -> Subject | None:
    graph = _Graph(random, dimensions)
    for op_type in op_types:
        graph.add(op_type)
    if not graph.nodes:
        return None
    generator = np.random.default_rng(random.randrange(1000))
    try:
        return _of_model(precision, graph.model(), [generator.uniform(-2, 2, dimensions).astype(np.float32)])
    except ValueError:  # results of empty reductions are undefined
        return None


def _of_model(precision: Precision, model: onnx.ModelProto, feeds: Sequence[Array]) -> Subject:
    with InferenceSession(model, devices="cpu") as session:
        expected = session.run(None, {"x": feeds[0]})
    for value, result in zip(model.graph.output, expected, strict=True):
        dimensions = tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
        if result.shape != dimensions:
            raise ValueError(f"ONNX Runtime returns shape {list(result.shape)}, ONNX specifies {list(dimensions)}")
    operations = [node.op_type for node in model.graph.node]
    return by_band(model, operations, feeds, expected, precision, partial(_of_model, precision, model))


UNSUPPORTED_DIMENSIONS = "the op does not support these dimensions"
NO_OPS = "the device supports no op of random graphs"
BOUNDARIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "scalar": (),
        "zero": (2, 0, 3),
        "zero-image": (0, 3, 4, 4),
        "one": (1, 1, 1, 1),
        "odd": (7, 13),
        "odd-image": (1, 3, 7, 11),
        "large": (3, 4099),
        "high-rank": (1, 2, 1, 2, 1, 2, 3),
    }
)
"""Name -> dimensions that break drivers."""
Spoil = Callable[[onnx.ModelProto], None]


def boundaries(bench: Bench) -> Iterator[Case]:
    """Yield cases of each op with each boundary shape."""
    kinds = ("zero", "odd") if bench.settings.short else tuple(BOUNDARIES)
    for op_type in NODES:
        for kind in kinds:
            yield Case(f"boundary/{kind}/{op_type}", partial(_boundary, op_type=op_type, dimensions=BOUNDARIES[kind]))


def graphs(bench: Bench) -> Iterator[Case]:
    """Yield cases of random graphs."""
    for number in range(20 if bench.settings.short else 120):
        yield Case(f"graphs/random/{number}", _graph)


def refusals(bench: Bench) -> Iterator[Case]:
    """Yield cases of invalid models, which must be refused."""
    for name in SPOILS:
        yield Case(f"refusals/{name}/0", partial(_refusal, name=name))


def _boundary(bench: Bench, random: Random, op_type: str, dimensions: tuple[int, ...]) -> Outcome:
    subject = of_op(bench, random, op_type, dimensions)
    return SkippedOutcome(UNSUPPORTED_DIMENSIONS) if subject is None else bench.examine(subject)


def _graph(bench: Bench, random: Random) -> Outcome:
    subject = of_many_nodes(bench, random, random.randint(2, 10))
    return SkippedOutcome(NO_OPS) if subject is None else bench.examine(subject)


def _refusal(bench: Bench, random: Random, name: str) -> Outcome:
    subject = of_many_nodes(bench, random, 3)
    if subject is None:
        return SkippedOutcome(NO_OPS)
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(subject.model)
    SPOILS[name](spoilt)
    return refused(bench, spoilt, name.replace("-", " "))


def _unknown_op_type(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def _unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "no.such.domain"


def _read_and_never_made(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "never made"


def _without_inputs(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[:]


def _reads_its_own_result(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[0].output[0]


def _data_types_that_do_not_fit(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("integers", onnx.TensorProto.INT64, [1], [1]))
    model.graph.node.insert(0, helper.make_node("Add", ["x", "integers"], ["mixed"], name="mixed"))
    model.graph.output.append(helper.make_tensor_value_info("mixed", onnx.TensorProto.FLOAT, None))


SPOILS: Mapping[str, Spoil] = MappingProxyType(
    {
        "unknown-op-type": _unknown_op_type,
        "unknown-domain": _unknown_domain,
        "read-and-never-made": _read_and_never_made,
        "without-inputs": _without_inputs,
        "reads-its-own-result": _reads_its_own_result,
        "data-types-that-do-not-fit": _data_types_that_do_not_fit,
    }
)


_SHORT = 12
_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_UNDECIDED = {
    "test_resize_downsample_scales_cubic_align_corners": "ONNX and its implementations divide by different lengths",
    "test_resize_downsample_scales_linear_align_corners": "ONNX and its implementations divide by different lengths",
    "test_maxunpool_export_with_output_shape": "ONNX and its implementations count indices in different shapes",
    "test_training_dropout": "its results are random",
    "test_training_dropout_default": "its results are random",
    "test_training_dropout_default_mask": "its results are random",
    "test_training_dropout_mask": "its results are random",
}
"""Test of onnx -> reason for its undefined results."""

_NO_TENSORS = "it uses sequences, maps or optional values, which devices need not support"


@dataclass(frozen=True, slots=True)
class _TestPiece:
    model: SegmentModel
    operations: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def operator_tests(bench: Bench) -> Iterator[Case]:
    """Yield onnx's tests of single operators."""
    tests = _tests()
    for name in list(tests)[:: _SHORT if bench.settings.short else 1]:
        yield Case(f"onnx/{name}", partial(_test, name=name))


@memoize(1)
def _tests() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx overflows deliberately
        return {test.name: test for test in load_model_tests(kind="node")}


def _test(bench: Bench, random: Random, name: str) -> Outcome:
    test = _tests()[name]
    if name in _UNDECIDED:
        return SkippedOutcome(_UNDECIDED[name])
    if any(node.op_type in _RANDOM for node in test.model.graph.node):
        return SkippedOutcome("its results are random")
    if any(not _is_tensor(value) for data in test.data_sets for group in data for value in group):
        return SkippedOutcome(_NO_TENSORS)
    try:
        piece = _piece(test.model, bench.capability.form)
    except NNAdapterError as error:
        return SkippedOutcome(f"the model cannot be prepared: {error}")
    if isinstance(piece, SkippedOutcome):
        return piece
    outcome: Outcome = SkippedOutcome("the test has no data")
    for inputs, outputs in test.data_sets:
        outcome = bench.examine(_subject(bench, piece, inputs, outputs))
    return outcome


def _subject(bench: Bench, piece: _TestPiece, inputs: Sequence[Any], outputs: Sequence[Any]) -> Subject:
    feeds = [_array(inputs[position]) for position in piece.inputs]
    expected = [_array(outputs[position]) for position in piece.outputs]
    return by_band(piece.model, piece.operations, feeds, expected, bench.settings.precision)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, onnx.TensorProto))


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _piece(model: onnx.ModelProto, form: ModelForm) -> _TestPiece | SkippedOutcome:
    prepared = prepare(model)
    values = prepared.graph.values
    if any(name in values and values[name].dtype is None for name in (*prepared.graph.inputs, *prepared.graph.outputs)):
        return SkippedOutcome(_NO_TENSORS)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in prepared.graph.inputs:
        shape = values[name].shape
        if shape is None or any(not isinstance(size, int) for size in shape):
            return SkippedOutcome("its shapes are not static")
        shapes[name] = tuple(size for size in shape if isinstance(size, int))
    specialized = specialize(prepared, shapes)
    if not specialized.graph.nodes:
        return SkippedOutcome("its results are constant")
    return _ir_piece(specialized) if form is ModelForm.IR else _onnx_piece(specialized, OnnxIndex.of(prepared.model))


def _ir_piece(specialized: Specialized) -> _TestPiece | SkippedOutcome:
    conversion, graph = converted(specialized), specialized.graph
    for verdict in conversion.verdicts:
        if isinstance(verdict, Unsupported):
            return SkippedOutcome(f"its converter: {verdict.detail}")
    outputs = _produced_outputs(specialized)
    operand_of = conversion.operand_of
    inputs = tuple(position for position, name in enumerate(graph.inputs) if name in operand_of)
    input_operands = [operand_of[graph.inputs[position]] for position in inputs]
    output_operands = [operand_of[graph.outputs[position]] for position in outputs]
    model = conversion.part(range(len(conversion.model.operations)), input_operands, output_operands)
    return _TestPiece(model, tuple(operation.type for operation in model.operations), inputs, outputs)


def _onnx_piece(specialized: Specialized, index: OnnxIndex) -> _TestPiece:
    graph = specialized.graph
    model = OnnxParts(specialized, index).remaining_model()
    operations = tuple(node.op_type for node in model.graph.node)
    return _TestPiece(model, operations, tuple(range(len(graph.inputs))), _produced_outputs(specialized))


def _produced_outputs(specialized: Specialized) -> tuple[int, ...]:
    graph = specialized.graph
    return tuple(position for position, name in enumerate(graph.outputs) if name in graph.producer)
