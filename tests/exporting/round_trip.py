"""One adapter IR model, exported to ONNX and imported again; both sides must match the definition."""

from __future__ import annotations

from random import Random

import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from nnadapter.candidates import converted, prepare
from nnadapter.exporting import export_model
from nnadapter.ir import Array, DataType
from nnadapter.ir.definition import by_definition
from nnadapter.onnx import inlined
from nnadapter.onnx.preparation import specialize
from nnadapter.testing.random_models import Maker, RandomCase, attempt, check

MOVES = {"RESIZE_NEAREST"}
"""Data movement for which ONNX Runtime lacks data types that ONNX has.

For positions halfway between two, onnx's reference (float64) rounds differently from ONNX Runtime and the definition
(float32).
"""
_ATTEMPTS = 40


def case_of(type_: str, seed: int) -> RandomCase | None:
    """Return a model of one operation, mostly float32; None if no attempt succeeded."""
    random = Random(f"{type_} {seed}")
    for _ in range(_ATTEMPTS):
        maker = Maker(random, [DataType.FLOAT32] * 3 + [DataType.INT64])
        maker.fresh_of(random.choice(maker.dtypes), maker.dimensions(), 0.1)
        if attempt(maker, type_, lambda model: True):
            return maker.finish(produced_only=True)
    return None


def written(case: RandomCase) -> onnx.ModelProto | str:
    """Return the model as ONNX, checked by onnx; or the refusal."""
    exported = export_model(case.model)
    for refusal in exported.refusals.values():
        return refusal.detail
    model = inlined(exported.model)
    onnx.checker.check_model(model, full_check=True)
    return model


def computed(model: onnx.ModelProto, case: RandomCase) -> list[Array] | None:
    """Return the results of ONNX Runtime, or of onnx's reference; None if neither has the op."""
    feeds = {value.name: feed for value, feed in zip(model.graph.input, case.feeds, strict=True)}
    got = _by_onnxruntime(model, feeds)
    if got is None and {operation.type for operation in case.model.operations} <= MOVES:
        got = _moved(model, feeds)
    if got is not None:
        return got
    try:
        return list(ReferenceEvaluator(model).run(None, feeds))
    except Exception:  # noqa: BLE001  it lacks some ops and forms
        return None


def _by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array] | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return [_typed(each, value) for each, value in zip(session.run(None, feeds), model.graph.output, strict=True)]
    except Exception:  # noqa: BLE001  the next engine is tried
        return None


def _moved(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array] | None:
    """Return ONNX Runtime's results for the same numbers in float32, which represents them: they are only moved."""
    floating = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*floating.graph.input, *floating.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    got = _by_onnxruntime(floating, {name: feed.astype("float32") for name, feed in feeds.items()})
    return got and [
        each.astype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for each, value in zip(got, model.graph.output, strict=True)
    ]


def _typed(array: Array, value: onnx.ValueInfoProto) -> Array:
    """Reinterpret 8-bit types, which ONNX Runtime returns as bytes."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return array if array.dtype == dtype else array.view(dtype)


def back(model: onnx.ModelProto, case: RandomCase) -> list[Array] | None:
    """Return the results of the imported model by the definition; None if all of it was folded."""
    prepared = prepare(model)
    shapes = {name: prepared.graph.values[name].shape for name in prepared.graph.inputs}
    specialized = specialize(prepared, shapes)
    conversion = converted(specialized)
    refused = [str(verdict) for verdict in conversion.verdicts if not verdict]
    assert not refused, refused
    again = conversion.model
    if not again.operations and case.model.operations:
        return None
    feeds = {value.name: feed for value, feed in zip(model.graph.input, case.feeds, strict=True)}
    results = by_definition(again, [feeds[again.operands[index].name] for index in again.inputs])
    made = {again.operands[index].name: result for index, result in zip(again.outputs, results, strict=True)}
    made.update((name, value) for name, value in specialized.constants.items() if name not in made)  # folded
    return [made[value.name] for value in model.graph.output]


def hold(case: RandomCase, got: list[Array]) -> None:
    """Raise AssertionError unless `got` is what the case computes."""
    check(case.model, case.feeds, got)
