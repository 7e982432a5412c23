from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.drivers import Context, Device, Execution, Program, registry
from nnadapter.drivers.faulty import (
    Fault,
    FaultyContext,
    FaultyDevice,
    FaultyExecution,
    FaultyProgram,
    Script,
    Subject,
    unwrapped,
    wrapped,
)
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    DriverError,
    ExecutionError,
    FaultScriptError,
    InvalidOptionError,
    NNAdapterError,
    NotDelegatedError,
)
from nnadapter.ir import DataType, ModelBuilder, OperandType

MODEL = parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
        a = Relu(x)
        y = Add(a, x)
        z = Mul(y, y)
    }"""
)
X = {"x": np.array([[1, -2, 3], [4, 5, -6]], np.float32)}
SUM = np.maximum(X["x"], 0) + X["x"]
RIGHT = [SUM, SUM * SUM]


def session(*faults, device="faulty:fake_npu", fallback="allow", **options):
    script = {"script": Script(faults=faults).to_toml()} if faults else {}
    return nna.InferenceSession(MODEL, devices=(device, {**script, **options}), options={"fallback": fallback})


def are_right(results):
    return len(results) == 2 and all(map(np.array_equal, results, RIGHT))


@pytest.mark.parametrize(
    ("wrapper", "inner"),
    [(FaultyDevice, Device), (FaultyContext, Context), (FaultyProgram, Program), (FaultyExecution, Execution)],
)
def test_all_methods_are_forwarded(wrapper, inner):
    public = {name for name, _ in inspect.getmembers(inner) if not name.startswith("_")}
    assert [name for name in sorted(public) if getattr(wrapper, name) is getattr(inner, name)] == []


def test_device_names_and_options(monkeypatch):
    row = next(row for row in nna.devices() if row.name.startswith("faulty"))
    assert row.available and row.name == "faulty:fake_npu" and "faulty:NAME" in row.sub_type
    assert {"script", "seed", "switched_off"} <= {option.name for option in row.capability.options}
    assert registry.device_info("faulty:fake_npu").version == registry.device_info("fake_npu").version
    assert registry.device_lock("faulty:metered") is registry.device_lock("metered")
    assert registry.inside("faulty:faulty:null") == "null" and registry.inside("null") == "null"
    with pytest.raises(DeviceNotFoundError, match="name it after the colon"):
        nna.InferenceSession(MODEL, devices="faulty")
    with pytest.raises(DeviceNotFoundError, match="'nonsense'"):
        nna.InferenceSession(MODEL, devices="faulty:nonsense")
    with pytest.raises(DeviceUnavailableError, match="already has options named 'script', 'seed'"):
        nna.InferenceSession(MODEL, devices="faulty:faulty:null")
    with pytest.raises(InvalidOptionError, match="'switched_of'"):
        session(switched_of="Add")


def test_without_a_script_it_equals_the_inner_device():
    with session() as around, session(device="fake_npu") as plain:
        assert are_right(around.run(None, X)) and are_right(plain.run(None, X))
        assert [len(candidate.report().segments) for candidate in (around, plain)] == [1, 1]
    assert type(a_context()) is type(a_plain_context())
    with session(switched_off="Relu") as opened:
        assert are_right(opened.run(None, X)) and len(opened.report().segments) == 2


def test_script_with_run_faults_changes_no_plan():
    with session(Fault(kind="fail", phase="run", op_type="Conv")) as around, session(device="fake_npu") as plain:
        assert are_right(around.run(None, X)) and are_right(plain.run(None, X))
        assert around.provenance.steps[0].device == "faulty:fake_npu"
        assert len(around.report().segments) == len(plain.report().segments)


FAILING = ["fail", "raise", "out_of_memory", "device_lost", "wrong_count", "wrong_shape"]


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        *((kind, "faulty:fake_npu") for kind in FAILING),
        ("fail", "faulty:openvino"),
        ("wrong_shape", "faulty:reference"),
    ],
)
def test_failing_run_is_detected(kind, device):
    with session(Fault(kind=kind, phase="run", nth=2), device=device) as opened:
        assert are_right(opened.run(None, X)) and not opened.provenance.steps[0].failure
        assert are_right(opened.run(None, X)) and opened.provenance.steps[0].failure
    with (
        session(Fault(kind=kind, phase="run", nth=1), device=device, fallback="forbid") as opened,
        pytest.raises(NNAdapterError),
    ):
        opened.run(None, X)


def test_wrong_data_type_is_detected():
    wrong = r"returned int32\[2, 3\] for 'z', expected float32\[2, 3\]"
    with (
        session(Fault(kind="wrong_dtype", phase="run", output=1), fallback="forbid") as opened,
        pytest.raises(ExecutionError, match=wrong),
    ):
        opened.run(None, X)


def test_wrong_numbers_follow_the_seed_and_are_not_detected():
    with session(Fault(kind="nan", phase="run", output=1, nth=1)) as opened:
        y, z = opened.run(None, X)
        assert np.array_equal(y, SUM) and np.isnan(z).all() and are_right(opened.run(None, X))
    flips = [Fault(kind="flipped_bits", phase="run", output=0, bits=3)]
    results = []
    for seed in (1, 1, 2):
        with session(*flips, seed=seed) as opened:
            y, z = opened.run(None, X)
            results.append(y)
            changed = np.unpackbits(y.view(np.uint8) ^ SUM.view(np.uint8)).sum()
            assert changed == 3 and np.array_equal(z, RIGHT[1])
    assert np.array_equal(results[0].view(np.int32), results[1].view(np.int32))
    assert not np.array_equal(results[0].view(np.int32), results[2].view(np.int32))


def test_retained_outputs_change_at_the_next_run():
    with session(Fault(kind="keeps_outputs", phase="run", nth=1)) as opened:
        first = opened.run(None, X)
        copies = [array.copy() for array in first]
        second = opened.run(None, X)
    assert are_right(copies) and are_right(second)
    for array, right in zip(first, RIGHT, strict=True):
        assert np.array_equal(array.view(np.uint8), ~right.view(np.uint8))


def test_inputs_are_written_to_before_it_fails():
    execution = an_execution(Fault(kind="fail", phase="run", nth=2), Fault(kind="writes_inputs", phase="run"))
    for runs in range(2):
        x = X["x"].copy()
        view = x.view()
        view.setflags(write=False)
        if runs:
            with pytest.raises(ExecutionError):
                execution.compute([view])
        else:
            assert are_right(execution.compute([view]))
        assert np.array_equal(x.view(np.uint8), ~X["x"].view(np.uint8))


def an_execution(*faults):
    return a_context(*faults).compile(an_ir_model()).create_execution()


def a_context(*faults):
    return context_of("faulty:fake_npu", script=Script(faults=faults).to_toml())


def a_plain_context():
    return context_of("fake_npu")


def context_of(name, **options):
    device = registry.open_device(name)
    defaults = {option.name: option.default for option in device.capability.options}
    return device.create_context({**defaults, **options})


def an_ir_model():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(dtype=DataType.FLOAT32, dimensions=(2, 3)))
    (a,) = builder.add_operation("RELU", [x])
    (y,) = builder.add_operation("ADD", [a, x])
    (z,) = builder.add_operation("MUL", [y, y])
    return builder.finish([y, z])


@pytest.mark.parametrize(("kind", "phase"), [("says_no", "judge"), ("says_no", "admit"), ("wrong_count", "judge")])
def test_false_refusals_leave_nodes_to_the_cpu(kind, phase):
    fault = Fault(kind=kind, phase=phase)
    with session(fault) as opened:
        assert are_right(opened.run(None, X)) and opened.provenance.steps[0].device == "cpu"
    with pytest.raises(NotDelegatedError):
        session(fault, fallback="forbid")


def test_false_acceptance():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        faults = (Fault(kind="says_yes", phase="judge"), Fault(kind="says_yes", phase="admit"))
        with session(*faults, switched_off="Add") as opened:
            assert are_right(opened.run(None, X))


def test_open_faults_require_the_environment_variable(monkeypatch):
    with pytest.raises(FaultScriptError, match="NNADAPTER_FAULTS"):
        session(Fault(kind="fail", phase="open"))
    script = Script(faults=(Fault(kind="fail", phase="open", message="no such bus"), Fault(kind="fail", phase="run")))
    monkeypatch.setenv("NNADAPTER_FAULTS", script.to_toml())
    with pytest.raises(DriverError, match="no such bus"):
        registry.open_device("faulty:metered")
    with session() as opened:
        assert are_right(opened.run(None, X)) and opened.provenance.steps[0].failure


def test_serialized_programs(monkeypatch):
    model = an_ir_model()
    context = a_context(
        Fault(kind="damaged_blob", phase="deserialize", nth=2),
        Fault(kind="foreign_blob", phase="deserialize", nth=3),
        Fault(kind="lies_about_blob", phase="deserialize", nth=2),
        Fault(kind="fail", phase="deserialize", nth=3),
        Fault(kind="nan", phase="run", op_type="Mul", output=0),
    )
    program = context.compile(model)
    blob, damaged, foreign = (program.serialize() for _ in range(3))
    verdicts = [context.check_blob(memoryview(blob)) for _ in range(2)]
    assert verdicts[0] != verdicts[1]
    with pytest.raises(NNAdapterError):
        context.deserialize(damaged)
    y, z = context.deserialize(foreign).create_execution().compute([X["x"]])
    assert np.isnan(y).all() and np.array_equal(z, RIGHT[1])  # the subject of the fault is stored in the bytes
    with pytest.raises(NNAdapterError, match="fault 4"):
        context.deserialize_view(memoryview(blob))
    plain = a_plain_context()
    assert are_right(context.deserialize(plain.compile(model).serialize()).create_execution().compute([X["x"]]))
    contents, _ = unwrapped(memoryview(blob))
    assert are_right(plain.deserialize(bytes(contents)).create_execution().compute([X["x"]]))
    with pytest.raises(NNAdapterError, match="list of operations"):
        context.deserialize(wrapped(b"", Subject((("a", ("b",)),))).replace(b'[["a"', b'{["a"'))


def test_failing_close_still_closes_the_inner_device():
    execution = an_execution(Fault(kind="fail", phase="close"))
    closed = []
    execution._inner.close = lambda: closed.append(True)
    with pytest.raises(DriverError):
        execution.close()
    assert closed == [True]
