"""Donated inputs: XLA writes an output into the memory of a value bound to both."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers.xla import Donating, compilation, usable
from nnadapter.engine import IN_A_ROW
from nnadapter.errors import DonatedValueError, InvalidInputError, NNAdapterError
from tests.drivers.xla.harness import DEVICE, context, numbers, relu
from tests.models import parse

CACHE = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] past, int64[1, 8] at, float[1, 8] new) => (float[4, 8] present, float[4, 8] other) {
    present = ScatterElements<axis = 0>(past, at, new)
    other = Neg(past)
}
"""
TWICE = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] past, float[4, 8] also) => (float[4, 8] present) { present = Sub(past, also) }
"""
PASSED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] past) => (float[4, 8] present, float[4, 8] same) { present = Neg(past) same = Identity(past) }
"""


def bound(session, cache, **fed):
    """Return a binding of a value to the first input and first output, and of others to inputs."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", cache)
    for name, value in fed.items():
        bind = binding.bind_ortvalue_input if isinstance(value, nna.DeviceValue) else binding.bind_cpu_input
        bind(name, value)
    binding.bind_ortvalue_output("present", cache)
    return binding


def address(value):
    tensor = value.contents.tensor_on(DEVICE)
    return tensor.memory.value(tensor.dtype, tensor.shape).unsafe_buffer_pointer()


def test_cache_is_updated_in_place():
    text = CACHE.replace(", float[4, 8] other", "").replace("other = Neg(past)", "")
    session = nna.InferenceSession(parse(text), devices=DEVICE)
    oracle = onnxruntime.InferenceSession(parse(text).SerializeToString())
    cache = nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE)
    expected, places = cache.numpy(), set()
    binding = bound(session, cache)
    for row in (2, 0, 3):
        at, row_update = np.full((1, 8), row), numbers(1, 8) * row
        binding.bind_cpu_input("at", at)
        binding.bind_cpu_input("new", row_update)
        session.run_with_iobinding(binding)
        places.add(address(cache))  # only addresses that XLA allocated: it does not overwrite numpy's memory
        (expected,) = oracle.run(None, {"past": expected, "at": at, "new": row_update})
        np.testing.assert_array_equal(cache.numpy(), expected)
    assert len(places) == 1


def test_other_readers_see_the_old_cache():
    session = nna.InferenceSession(parse(CACHE), devices=DEVICE)
    past, at, row_update = numbers(4, 8), np.ones((1, 8), np.int64), numbers(1, 8)
    cache = nna.DeviceValue.from_numpy(past, DEVICE)
    binding = bound(session, cache, at=at, new=row_update)
    binding.bind_output("other", DEVICE)
    session.run_with_iobinding(binding)
    expected = onnxruntime.InferenceSession(parse(CACHE).SerializeToString()).run(
        ["present", "other"], {"past": past, "at": at, "new": row_update}
    )
    for result, right in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_value_fed_twice_is_not_donated():
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE)
    cache = nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE)
    initial = cache.contents
    binding = bound(session, cache, also=cache)
    session.run_with_iobinding(binding)
    assert not cache.numpy().any()
    np.testing.assert_array_equal(initial.host(), numbers(4, 8))


def test_input_that_is_an_output_is_not_donated():
    session = nna.InferenceSession(parse(PASSED), devices=DEVICE)
    cache = nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE)
    binding = bound(session, cache)
    binding.bind_output("same", DEVICE)
    session.run_with_iobinding(binding)
    negative, same = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(same, numbers(4, 8))
    np.testing.assert_array_equal(negative, -same)


def test_value_read_by_other_steps_is_not_donated():
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[4, 8] past) => (float[4, 8] present, float[4, 8] last) {
        present = Neg(past)
        middle = Hardmax(present)
        last = Add(middle, past)
    }
    """
    rules = nna.Rules(pins=(nna.Pin(device="cpu", op_type="Hardmax"),))
    session = nna.InferenceSession(parse(text), devices=DEVICE, options={"rules": rules})
    cache = nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE)
    binding = bound(session, cache)
    binding.bind_output("last", DEVICE)
    session.run_with_iobinding(binding)
    right = onnxruntime.InferenceSession(parse(text).SerializeToString()).run(None, {"past": numbers(4, 8)})
    for result, expected in zip(binding.copy_outputs_to_cpu(), right, strict=True):
        np.testing.assert_allclose(result, expected, 1e-6)
    assert [step.device for step in session.provenance.steps] == [DEVICE, "cpu", DEVICE]


@pytest.mark.parametrize("checks", [{"verify": "once"}, {"shadow": 1}])
def test_verified_run_donates_nothing(checks):
    options = nna.Options(**checks)
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE, options=options)
    cache, other = (nna.DeviceValue.from_numpy(numbers(4, 8) * factor, DEVICE) for factor in (1, 3))
    binding = bound(session, cache, also=other)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(cache.numpy(), numbers(4, 8) * -2, 1e-6)
    assert [step.device for step in session.provenance.steps] == [DEVICE] and not session.provenance.steps[0].failure


def test_other_owner_of_a_donated_tensor_gets_an_error():
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE)
    cache, other = (nna.DeviceValue.from_numpy(numbers(4, 8) * factor, DEVICE) for factor in (1, 3))
    initial = cache.contents
    binding = bound(session, cache, also=other)
    session.run_with_iobinding(binding)
    donated = nna.DeviceValue(initial, DEVICE)
    for reads in (initial.host, donated.numpy, donated.__dlpack__, donated.__dlpack_device__):
        with pytest.raises(NNAdapterError, match="donated to a run"):
            reads()


@pytest.mark.parametrize("during_run", [False, True], ids=["before the run", "during the run"])
def test_feeding_a_donated_tensor_is_an_error_of_the_caller(during_run, monkeypatch):
    """The error belongs to the caller: nothing falls back, and the device stays usable."""
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE, options={"fallback": "allow"})
    cache, other = (nna.DeviceValue.from_numpy(numbers(4, 8) * factor, DEVICE) for factor in (1, 3))
    donated, binding = nna.DeviceValue(cache.contents, DEVICE), bound(session, cache, also=other)
    if during_run:  # another thread takes the memory after this run's check
        array = donated.contents.tensor_on(DEVICE).memory.value(np.dtype(np.float32), (4, 8))
        kind = type(context().compile(relu()).create_execution())
        started = kind._start
        monkeypatch.setattr(kind, "_start", lambda run, inputs: (array.delete(), started(run, inputs))[1])
    else:
        session.run_with_iobinding(binding)
    for _ in range(IN_A_ROW + 1):
        with pytest.raises(DonatedValueError, match="donated to a run, .*; create a new tensor from its data"):
            session.run_with_ort_values(None, {"past": donated, "also": other})
    monkeypatch.undo()
    session.run(None, {"past": numbers(4, 8), "also": numbers(4, 8)})
    assert [step.device for step in session.provenance.steps] == [DEVICE] and not session.provenance.steps[0].failure


def test_valid_binding_is_filled_if_another_is_refused():
    session = nna.InferenceSession(parse(CACHE), devices=DEVICE)
    cache, small = nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE), np.zeros(3, np.float32)
    row_update = np.full((1, 8), 7, np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", cache)
    binding.bind_cpu_input("at", np.ones((1, 8), np.int64))
    binding.bind_cpu_input("new", row_update)
    binding.bind_output("other", "cpu", 0, np.float32, small.shape, small.ctypes.data)
    binding.bind_ortvalue_output("present", cache)
    with pytest.raises(InvalidInputError, match="is bound to memory of"):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(cache.numpy()[1:2], row_update)


def test_number_of_donated_sets_per_segment_is_bounded(monkeypatch):
    monkeypatch.setattr(compilation, "_MOST_VARIANTS", 1)
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE)
    first, second = (nna.DeviceValue.from_numpy(numbers(4, 8) * factor, DEVICE) for factor in (1, 3))
    for target in (first, second):
        initial = target.contents
        binding = session.io_binding()
        binding.bind_ortvalue_input("past", first)
        binding.bind_ortvalue_input("also", second)
        binding.bind_ortvalue_output("present", target)
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(initial.host(), numbers(4, 8) * 3)
    np.testing.assert_allclose(second.numpy(), numbers(4, 8) * -5, 1e-6)


def test_memory_of_another_library_is_not_overwritten():
    torch = pytest.importorskip("torch")
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE)
    tensor = torch.ones(4, 8)
    cache = nna.DeviceValue.from_dlpack(tensor, DEVICE)
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", cache)
    binding.bind_cpu_input("also", np.full((4, 8), 3, np.float32))
    binding.bind_ortvalue_output("present", cache)
    for _ in range(2):
        session.run_with_iobinding(binding)
    assert tensor.eq(1).all() and (cache.numpy() == -5).all()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_tensor_shared_by_two_values_is_not_donated(is_replaced):
    """The passed-through output shares its tensor with the input."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[4, 8] past) => (float[4, 8] past, float[4, 8] negative) { negative = Neg(past) }
    """
    passing = nna.InferenceSession(parse(text), devices=DEVICE)
    fed, target = (nna.DeviceValue.from_numpy(numbers(4, 8), DEVICE) for _ in range(2))
    binding = passing.io_binding()
    binding.bind_ortvalue_input("past", fed)
    binding.bind_output("past", DEVICE)
    binding.bind_ortvalue_output("negative", fed if is_replaced else target)
    passing.run_with_iobinding(binding)
    same, expected = binding.get_outputs()[0], numbers(4, 8)
    session = nna.InferenceSession(parse(TWICE), devices=DEVICE)
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", same)
    binding.bind_cpu_input("also", expected)
    binding.bind_ortvalue_output("present", target if is_replaced else same)
    session.run_with_iobinding(binding)
    unchanged = same if is_replaced else fed
    np.testing.assert_array_equal(unchanged.numpy(), expected)


@pytest.mark.parametrize(
    ("donations", "inputs", "results", "expected"),
    [
        ([0], ["a", "b"], ["b"], ()),
        ([0, 1], ["a", "a"], ["a"], (0,)),
        ([1], ["a", "a"], ["b", "a"], (1,)),
        ([0, 2], ["a", "b", "a"], ["a", "a"], (0, 2)),
    ],
)
def test_each_result_uses_the_memory_of_one_input(donations, inputs, results, expected):
    assert usable(donations, inputs, results) == expected


def test_failing_donating_program_falls_back_to_the_plain_one(monkeypatch):
    def fails(*_):
        raise RuntimeError("no")

    compiled = context().compile(relu())._compiled
    compilation = Donating(compiled)
    monkeypatch.setattr(compilation, "_variant", fails)
    assert compilation.start([numbers(4)], [0]) is None
