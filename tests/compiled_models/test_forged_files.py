"""Files whose checksums are right and which say anything: an error that is ours, or a model that runs; nothing else.

The changes are random, the same ones for the same seed; more of them in the long form.
"""

from __future__ import annotations

import resource
import warnings
from hashlib import sha256
from random import Random

import pytest

import nnadapter as nna
from nnadapter.compiled_models.messages import MESSAGES
from nnadapter.compiled_models.parts import IR, MODEL
from nnadapter.errors import NNAdapterError
from nnadapter.ir.protobuf.messages import new, parse
from tests.compiled_models.files import KINDS, joined, kind_of, parts_of
from tests.compiled_models.forging import forge

every_kind = pytest.mark.parametrize("name", KINDS)
_MOST_KILOBYTES = 200 << 10
"""More memory than before that files may take together; ru_maxrss counts in KiB on Linux."""


def forged_once(random, parts, at):
    """A file with one or two things changed in its message."""
    message = MESSAGES.parse("CompiledModel", parts[at][1])
    what = [forge(random, message) for _ in range(random.choice((1, 1, 1, 2)))]
    return what, joined([*parts[:at], (MODEL, message.SerializeToString()), *parts[at + 1 :]])


def signed(model):
    """A file of adapter IR around a message of a model, its digest right."""
    whole = new("File")
    whole.format, whole.version = "nnadapter model", 1
    whole.model = model.SerializeToString(deterministic=True)
    whole.sha256 = sha256(whole.model).digest()
    return whole.SerializeToString(deterministic=True)


def forged_segment(random, parts, at):
    """A file with something changed in a kept segment, which is compiled again."""
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
    """Load, run, and ask everything; errors of ours are as good as results."""
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


@every_kind
def test_any_message(tmp_path, name, request):
    check(name, request, tmp_path, forged_once, 150, 0)


@pytest.mark.parametrize("name", WITH_IR)
def test_any_kept_segment(tmp_path, name, request):
    check(name, request, tmp_path, forged_segment, 60, 0)


@pytest.mark.fuzz
@every_kind
def test_many_messages(tmp_path, name, request):
    check(name, request, tmp_path, forged_once, 5000, 1)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", WITH_IR)
def test_many_kept_segments(tmp_path, name, request):
    check(name, request, tmp_path, forged_segment, 3000, 1)
