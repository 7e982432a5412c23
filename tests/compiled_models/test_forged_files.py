"""Forged files with right checksums: an nnadapter error or a running model, never a crash.

Changes are random but reproducible; the long form makes more.
"""

from __future__ import annotations

import resource
import warnings
from hashlib import sha256
from random import Random

import pytest

import nnadapter as nna
from nnadapter.engine import IR, MESSAGES, MODEL
from nnadapter.errors import CompiledModelError, NNAdapterError
from nnadapter.ir.protobuf import new, parse
from tests.compiled_models.files import KINDS, chain, forged, joined, kind_of, parts_of
from tests.compiled_models.forging import forge
from tests.models import HEAD, numbers
from tests.models import parse as parsed

every_kind = pytest.mark.parametrize("name", KINDS)
_MOST_KILOBYTES = 200 << 10
"""Limit of additional memory for all files together; ru_maxrss counts KiB on Linux."""


def forged_once(random, parts, at):
    """Return a file with one or two changes in its message."""
    message = MESSAGES.parse("CompiledModel", parts[at][1])
    what = [forge(random, message) for _ in range(random.choice((1, 1, 1, 2)))]
    return what, joined([*parts[:at], (MODEL, message.SerializeToString()), *parts[at + 1 :]])


def signed(model):
    """Return an adapter IR file of a model message, with the right digest."""
    whole = new("File")
    whole.format, whole.version = "nnadapter model", 1
    whole.model = model.SerializeToString(deterministic=True)
    whole.sha256 = sha256(whole.model).digest()
    return whole.SerializeToString(deterministic=True)


def forged_segment(random, parts, at):
    """Return a file with a changed segment of adapter IR, which must be compiled again."""
    chosen = random.choice([number for number, (kind, _) in enumerate(parts) if kind == IR])
    model = parse("Model", parse("File", parts[chosen][1]).model)
    what = [forge(random, model) for _ in range(random.choice((1, 1, 2)))]
    message = MESSAGES.parse("CompiledModel", parts[at][1])
    for plan in message.plans:
        for step in plan.steps:
            step.ClearField("program")
    changes = {chosen: (IR, signed(model)), at: (MODEL, message.SerializeToString())}
    return what, joined([changes.get(number, part) for number, part in enumerate(parts)])


def use(contents, feed, session_options=None):
    """Load, run and query the file; accept nnadapter errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with nna.InferenceSession(contents, session_options) as session:
                assert str(session.report()) and session.report().to_json()
                assert all(each.type or not each.type for each in (*session.get_inputs(), *session.get_outputs()))
                session.run(None, feed)
        except NNAdapterError:
            return False
    return True


def check(name, request, folder, change, count, seed):
    kind = kind_of(name, request)
    whole, _ = kind.written(folder)
    parts, at = parts_of(whole)
    random, before = Random(f"{name}/{seed}"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = 0
    for number in range(count):
        what, contents = change(random, parts, at)
        try:
            ran += use(contents, kind.feed)
        except Exception as error:
            raise AssertionError(f"change {number}, {what}: {type(error).__name__}: {error}") from error
    assert 0 < ran < count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_KILOBYTES


WITH_IR = [name for name, kind in KINDS.items() if kind.device in ("fake_npu", "acme_c", "keeping", "trial")]


@pytest.mark.slow
@every_kind
def test_forged_message(tmp_path, name, request):
    check(name, request, tmp_path, forged_once, 50, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_IR)
def test_forged_stored_segment(tmp_path, name, request):
    check(name, request, tmp_path, forged_segment, 30, 0)


@pytest.mark.fuzz
@every_kind
def test_many_forged_messages(tmp_path, name, request):
    check(name, request, tmp_path, forged_once, 5000, 1)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", WITH_IR)
def test_many_forged_stored_segments(tmp_path, name, request):
    check(name, request, tmp_path, forged_segment, 3000, 1)


def smaller(message):
    """Make every declared size smaller than the program was compiled for."""
    plans = message.plans
    for value in (*message.inputs, *message.outputs, *(value for plan in plans for value in plan.values)):
        value.shape.dimensions[0].size = 1
    for plan in plans:
        plan.shapes[0].dimensions[0].size = 1


def test_c_driver_checks_input_sizes(tmp_path, acme):
    """Check reads of arrays and of device memory."""
    x, model = {"x": numbers(1, 3)}, parsed(f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ y = Relu(x) }}")
    nna.compile(model, tmp_path / "f", devices=["acme_c"])
    contents = forged((tmp_path / "f").read_bytes(), smaller)
    with nna.InferenceSession(contents, options=nna.Options(fallback="forbid")) as session:
        with pytest.raises(NNAdapterError, match=r"inputs have \[12\] bytes, but the program was compiled for \[24\]"):
            session.run(None, x)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", nna.DeviceValue.from_numpy(x["x"], "acme_c"))
        binding.bind_output("y", "acme_c")
        with pytest.raises(NNAdapterError, match="inputs have"):
            session.run_with_iobinding(binding)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda message: message.plans[0].steps[0].ClearField("outputs"), "has no outputs"),
        (lambda message: message.plans[0].steps[0].inputs.append("w"), "step 0 reads 'w', which is not defined"),
        (lambda message: message.plans[0].steps[0].segment.inputs.append("w"), "step 0 reads 'w'"),
        (lambda message: message.plans[0].steps[0].outputs.append("x"), "computed twice"),
        (lambda message: message.plans[0].steps[0].outputs.append("w"), "computes an undeclared value: 'w'"),
        (lambda message: message.outputs.pop(), "a value that is never read"),
        (lambda message: message.order.append("w"), "order of inputs is incomplete"),
        (lambda message: message.inputs.append(message.inputs[0]), "is listed twice"),
        (lambda message: message.defaults.add(name="x"), "of type '', expected numbers"),
        (lambda message: message.ClearField("plans"), "no plan"),
        (lambda message: message.ClearField("devices"), "not a device of the file"),
        (lambda message: message.devices.append(message.devices[0]), "two devices have the same name"),
        (lambda message: message.plans[0].ClearField("shapes"), "has other inputs"),
        (lambda message: message.plans[0].shapes[0].dimensions[0].ClearField("size"), "inputs of unknown size"),
        (lambda message: setattr(message.plans[0].shapes[0].dimensions[0], "size", 5), "'x' has two shapes"),
        (lambda message: setattr(message.plans[0].values[0].shape.dimensions[0], "size", -1), "no size below 0"),
        (lambda message: setattr(message.plans[0].values[0].shape.dimensions[0], "size", 2**62), "is too large"),
        (lambda message: setattr(message.plans[0].values[0], "itemsize", float("nan")), "have nan bytes"),
        (lambda message: setattr(message.inputs[0], "data_type", "pickle"), "has unknown type 'pickle'"),
        (lambda message: setattr(message.inputs[0], "name", ""), "no name"),
        (lambda message: setattr(message.plans[0].steps[0].segment, "part", 77), "it refers to part 77"),
        (lambda message: setattr(message.plans[0].steps[0].segment, "part", message.plans[0].report), "is 'report'"),
        (lambda message: setattr(message.plans[0].steps[0].segment, "form", "pickle"), "form 'pickle'"),
        (lambda message: setattr(message.plans[0].steps[0], "twin", 3), "clones step 3"),
    ],
)
def test_contradictory_message_is_reported_as_damage(tmp_path, change, said):
    nna.compile(chain(), tmp_path / "f", devices=["null"], options={"fallback": "forbid"})
    contents = forged((tmp_path / "f").read_bytes(), change)
    with pytest.raises(CompiledModelError, match=f"damaged.*{said}.*compile the model again"):
        nna.InferenceSession(contents)


def test_oversized_message_is_refused_before_parsing():
    harmful = b"\x12\x00" * (MESSAGES.largest // 2 + 1)
    with pytest.raises(CompiledModelError, match=f"has {len(harmful)} bytes, expected at most {MESSAGES.largest}"):
        nna.InferenceSession(joined([(MODEL, harmful)]))
