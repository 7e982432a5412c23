"""onnx's own operator tests, in the form that a device takes; for devices that take the adapter IR, converted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from nnadapter.candidates.conversions import converted, prepare
from nnadapter.candidates.segments import OnnxParts
from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.interface import SegmentModel
from nnadapter.errors import NNAdapterError
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.preparation.prepare import Specialized, specialize
from nnadapter.process.resources import memoize
from nnadapter.testing.bench import Bench, Case
from nnadapter.testing.subjects import Outcome, SkippedOutcome, Subject, by_band
from partition.graph import Unsupported

_SHORT = 12
"""In the short form, one of so many."""
_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Ops whose results are drawn: the data hold those that somebody else drew."""
_UNDECIDED = {
    "test_resize_downsample_scales_cubic_align_corners": "ONNX and its implementations divide by different lengths",
    "test_resize_downsample_scales_linear_align_corners": "ONNX and its implementations divide by different lengths",
    "test_maxunpool_export_with_output_shape": "ONNX and its implementations count indices in different shapes",
    "test_training_dropout": "numbers are drawn at random",
    "test_training_dropout_default": "numbers are drawn at random",
    "test_training_dropout_default_mask": "numbers are drawn at random",
    "test_training_dropout_mask": "numbers are drawn at random",
}
"""Tests whose results are not laid down, by name, and why."""

_NO_TENSORS = "it is about sequences, maps or optional values, which devices are not asked for"


@dataclass(frozen=True, slots=True)
class _TestPiece:
    """A test's model as a device takes it."""

    model: SegmentModel
    operations: tuple[str, ...]
    inputs: tuple[int, ...]
    """Positions of the test's inputs that the model reads."""
    outputs: tuple[int, ...]
    """Positions of the test's outputs that the model makes: others are known beforehand."""


def operator_tests(bench: Bench) -> Iterator[Case]:
    """Every test of one operator that onnx ships."""
    tests = _tests()
    for name in list(tests)[:: _SHORT if bench.settings.short else 1]:
        yield Case(f"onnx/{name}", partial(_test, name=name))


@memoize(1)
def _tests() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx overflows on purpose where it makes expected results
        return {test.name: test for test in load_model_tests(kind="node")}


def _test(bench: Bench, random: Random, name: str) -> Outcome:
    test = _tests()[name]
    if name in _UNDECIDED:
        return SkippedOutcome(_UNDECIDED[name])
    if any(node.op_type in _RANDOM for node in test.model.graph.node):
        return SkippedOutcome("numbers are drawn at random")
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
            return SkippedOutcome("its shapes are not known beforehand")
        shapes[name] = tuple(size for size in shape if isinstance(size, int))
    specialized = specialize(prepared, shapes)
    if not specialized.graph.nodes:
        return SkippedOutcome("nothing is left to run: the results are known beforehand")
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
