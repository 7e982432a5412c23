"""onnx's official suite through its own runner, and counts of what runs on fake_npu alone."""

from __future__ import annotations

import functools
import unittest
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import nnadapter as nna
from nnadapter.backend import Backend
from nnadapter.drivers.registry import device_info
from nnadapter.errors import DriverError, InvalidModelError, NNAdapterError, NotDelegatedError
from nnadapter.onnx import value_of
from partition.graph import DTYPE_OF_ELEMENT_TYPE

_CLASSES = {
    "node": "OnnxBackendNodeModelTest",
    "simple": "OnnxBackendSimpleModelTest",
    "pytorch-converted": "OnnxBackendPyTorchConvertedModelTest",
    "pytorch-operator": "OnnxBackendPyTorchOperatorModelTest",
}
_LIMITS = frozenset(
    (
        *("unsupported_dtype", "unsupported_rank", "unsupported_type", "control_flow"),
        *("dynamic_shape", "data_dependent_shape"),
    )
)
"""Refusals due to declared limits of a device: types, ranks, and shapes unknown before the run."""
_AXES = frozenset(("CumProd", "CumSum", "DFT"))
"""Ops with a dynamic axis input, which is a limit too; other dynamic inputs are not."""


class Pair(Backend):
    """Backend on [fake_npu, cpu] for the runner's device CPU."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        return super().prepare(model, devices=["fake_npu", "cpu"])

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        return True  # the suite would skip incompatible models; they must fail


class _Result(unittest.TestResult):
    """Result that records passed cases."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def addSuccess(self, test):
        self.outcomes[_name(test)] = ""

    def addFailure(self, test, err):
        self.outcomes[_name(test)] = " ".join(f"{err[0].__name__}: {err[1]}".split())

    addError = addFailure  # noqa: N815  unittest's name


def _name(test: unittest.TestCase) -> str:
    return test.id().rsplit(".", 1)[-1].removesuffix("_cpu")


def official(every: int = 1, always: Collection[str] = ()) -> Mapping[str, Mapping[str, str]]:
    """Return failure messages by kind and case on [fake_npu, cpu]; empty if the case passed.

    Every `every`-th case runs, and those in `always`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = BackendTest(Pair, __name__).test_cases
        return {kind: _outcomes(classes[name], every, always) for kind, name in _CLASSES.items()}


def _outcomes(case: type[unittest.TestCase], every: int, always: Collection[str]) -> Mapping[str, str]:
    result = _Result()
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    chosen = [test for number, test in enumerate(tests) if number % every == 0 or _name(test) in always]
    unittest.TestSuite(chosen).run(result)
    return result.outcomes


@dataclass(frozen=True)
class Alone:
    """Result of a node test on fake_npu alone."""

    name: str
    admitted: bool
    """Nothing exceeds the device's declared limits."""
    whole: bool
    """All nodes run on the device."""
    mismatch: str
    """Difference from onnx's results, or empty."""


def alone(every: int = 1) -> Iterator[Alone]:
    """Run every `every`-th node test on fake_npu with fallback forbidden."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node")[::every]:
            yield _alone(case)


def _alone(case) -> Alone:
    try:
        with nna.InferenceSession(case.model, devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
            return Alone(case.name, admitted=True, whole=True, mismatch=_mismatch(session, case))
    except (NotDelegatedError, InvalidModelError):
        return Alone(case.name, _is_admitted(case.model), whole=False, mismatch="")


def _mismatch(session, case) -> str:
    names = [value.name for value in session.get_inputs()]
    try:
        for inputs, outputs in case.data_sets:
            results = session.run(None, dict(zip(names, map(_array, inputs), strict=False)))
            Runner.assert_similar_outputs(list(map(_array, outputs)), results, case.rtol, case.atol)
    except (AssertionError, DriverError) as error:
        return str(error)
    return ""


def _array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@functools.cache
def _taken() -> Collection[str]:
    return {dtype.value for operation in device_info("fake_npu").capability.operations for dtype in operation.dtypes}


def _is_admitted(model: onnx.ModelProto) -> bool:
    taken = _taken()
    if not {value_of(value).dtype for value in (*model.graph.input, *model.graph.output)} <= taken:
        return False
    if not {DTYPE_OF_ELEMENT_TYPE[tensor.data_type] for tensor in model.graph.initializer} <= taken:
        return False
    try:
        report = nna.partition_report(model, devices="fake_npu", options=nna.Options(fallback="allow"))
    except NNAdapterError:
        return False
    return not any(_is_limit(node.op_type, refusal) for node in report.nodes for refusal in node.refusals)


def _is_limit(op_type: str, refusal) -> bool:
    return refusal.reason in _LIMITS or (refusal.reason == "not_constant" and op_type in _AXES)


def plain(names: Collection[str], kinds: Sequence[str]) -> Mapping[str, str]:
    """Return failure messages by case in ONNX Runtime without nnadapter; empty if the case passed."""
    cases = [case for kind in kinds for case in load_model_tests(kind=kind) if case.name in names]
    return {case.name: _plain(case) for case in cases}


def _plain(case) -> str:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return _mismatch(session, case)
    except Exception as error:  # noqa: BLE001  any exception is a failure
        return f"{type(error).__name__}: {error}"
