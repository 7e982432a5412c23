from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from random import Random

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

from nnadapter.errors import CompilationError, NNAdapterError
from nnadapter.onnx import value_of
from tests.drivers.openvino.harness import computed
from tests.drivers.openvino.sweep.forms import Draft, Form, model_of
from tests.drivers.openvino.sweep.recipes import RECIPES
from tests.drivers.openvino.sweep.values import difference

BATCH = 24
"""Nodes per model: compiling a model costs more than its nodes."""
_NARROW = frozenset(("LRN", "InstanceNormalization"))
"""Ops that ONNX Runtime supports incompletely; onnx's evaluator computes the rest."""
Case = tuple[Form, list[np.ndarray]]


@dataclass(slots=True)
class Outcome:
    op_type: str
    tried: int = 0
    skipped: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    agreeing: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        accepted = len(self.agreeing) + len(self.differing)
        counts = f"{self.tried:6} tried {self.skipped:6} no case {len(self.refused):6} refused {accepted:6} taken"
        return f"{self.op_type:26}{counts} {len(self.differing):6} differing"


def sweep(opened, op_types: Sequence[str], count: int, seed: int) -> Mapping[str, Outcome]:
    """Try different forms of each op, several of one opset per model."""
    outcomes, batches = {op_type: Outcome(op_type) for op_type in op_types}, {}
    for form in (form for op_type in op_types for form in forms_of(op_type, count, seed)):
        expected = expected_of(form)
        outcomes[form.node.op_type].tried += 1
        outcomes[form.node.op_type].skipped += expected is None
        if expected is not None:
            batch = batches.setdefault(form.opset, [])
            batch.append((form, expected))
            if len(batch) == BATCH:
                _try(opened, batches.pop(form.opset), outcomes)
    for batch in batches.values():
        _try(opened, batch, outcomes)
    return outcomes


def sweep_open(opened, op_type: str, count: int, seed: int) -> Outcome:
    """Try forms of one op with some or all input sizes dynamic, one per model."""
    outcome, random = Outcome(op_type), Random(f"{op_type} {seed} open")
    for form in forms_of(op_type, count, seed):
        expected = expected_of(form)
        outcome.tried += 1
        if expected is None or not form.feed or not all(opened.supported(_typed([(form, expected)]))):
            outcome.skipped += 1
            continue
        model = _opened(form, random)
        verdict = opened.admit(model).verdict
        if not verdict:
            outcome.refused[form.text] = verdict.detail
            continue
        try:
            results = computed(opened, model, form.feed.values())
        except CompilationError as error:  # the driver would then use static sizes
            outcome.refused[form.text] = str(error)
            continue
        wrong = next(filter(None, map(difference, results, expected, repeat(form.steps))), "")
        if wrong:
            outcome.differing[form.text] = wrong
        else:
            outcome.agreeing.append(form.text)
    return outcome


def _opened(form: Form, random: Random) -> onnx.ModelProto:
    model, share = model_of([form]), random.choice((0.3, 0.7, 1.0))
    for value in model.graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if random.random() < share:
                size.dim_param = f"{value.name} {axis}"
    return model


def forms_of(op_type: str, count: int, seed: int) -> Iterator[Form]:
    """Yield up to `count` different forms; fewer if the op has fewer."""
    random, texts = Random(f"{op_type} {seed}"), set()
    for _ in range(4 * count):
        draft = Draft(op_type, random)
        RECIPES[op_type](draft)
        form = draft.form()
        if form.text not in texts and len(texts) < count:
            texts.add(form.text)
            yield form


def expected_of(form: Form) -> list[np.ndarray] | None:
    """Return ONNX Runtime's results, or None if it fails, deviates from ONNX's shape, or returns empty results."""
    try:
        model = onnx.shape_inference.infer_shapes(model_of([form]), strict_mode=True, check_type=True, data_prop=True)
        results = _computed(model, {f"{name}0": array for name, array in form.feed.items()})
    except Exception:  # noqa: BLE001  any error of onnx or ONNX Runtime excludes the form
        return None
    types = map(value_of, model.graph.output)
    fits = (
        result.size and type_.static_shape in (None, result.shape) for result, type_ in zip(results, types, strict=True)
    )
    return results if all(fits) else None


def run_plain(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def _computed(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return run_plain(model, feed)
    except Exception as error:  # ONNX Runtime's errors have no common class
        if isinstance(error, NoKernelError) or model.graph.node[0].op_type in _NARROW:
            with np.errstate(all="ignore"):
                return list(map(np.asarray, ReferenceEvaluator(model).run(None, feed)))
        raise


def _try(opened, batch: Sequence[Case], outcomes: Mapping[str, Outcome]) -> None:
    accepted = []
    for case, verdict in zip(batch, opened.supported(_typed(batch)), strict=True):
        if verdict:
            accepted.append(case)
        else:
            outcomes[case[0].node.op_type].refused[case[0].text] = verdict.detail
    for form, wrong in _differences(opened, accepted):
        outcome = outcomes[form.node.op_type]
        if wrong:
            outcome.differing[form.text] = wrong
        else:
            outcome.agreeing.append(form.text)


def _differences(opened, accepted: Sequence[Case]) -> Iterator[tuple[Form, str]]:
    """Yield each form with its difference; a form that fails the whole model is found by bisection."""
    if not accepted:
        return
    try:
        results = iter(
            computed(opened, _typed(accepted), [array for form, _ in accepted for array in form.feed.values()])
        )
    except NNAdapterError as error:
        if len(accepted) == 1:
            yield accepted[0][0], f"{type(error).__name__}: {error}"
        else:
            middle = len(accepted) // 2
            yield from _differences(opened, accepted[:middle])
            yield from _differences(opened, accepted[middle:])
        return
    for form, expected in accepted:
        wrong = list(filter(None, [difference(next(results), right, form.steps) for right in expected]))
        yield form, next(iter(wrong), "")


def _typed(batch: Sequence[Case]) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model_of([form for form, _ in batch]), data_prop=True)
