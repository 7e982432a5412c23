"""Models, feeds and files that request excessive resources: each gives an nnadapter error or a result.

`python -m benchmarks hostile` runs each in its own process, and prints time and memory.
"""

from __future__ import annotations

import warnings

import onnx
import pytest

import nnadapter as nna
from benchmarks.models.hostile_files import FEEDS, FILES, TEXTS, read
from benchmarks.models.hostile_models import GRAPHS, SIZES
from nnadapter import limits
from nnadapter.errors import InvalidModelError, NNAdapterError
from tests.models import HEAD, parse

_LONG = ("million", "millions", "headers", "16 GiB", "100 KB", "Loop", "200,000")
"""Names of slow cases: long to write, or running until their deadline."""
_VIEWS = ("2**40", "2**31", "strides of 0", "without end")
"""Feeds that a system may allocate without having the memory."""
MODELS = {**GRAPHS, **SIZES, **FILES}


def _outcome(source, feed, device="fake_npu"):
    given = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with nna.InferenceSession(given, devices=device, options={"deadline_s": 30.0}) as session:
                session.run(None, feed)
        except NNAdapterError as error:
            return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if not any(word in name for word in _LONG)])
def test_oversized_models_raise_only_our_errors(name, tmp_path):
    source, feed = MODELS[name](tmp_path)
    size = max((array.nbytes for array in feed.values()), default=0)
    if size > 1 << 30:
        return  # ONNX Runtime would copy this view of little memory
    _outcome(source, feed)


@pytest.mark.parametrize("name", [name for name in FEEDS if not any(word in name for word in _VIEWS)])
def test_oversized_feeds_raise_only_our_errors(name):
    model = parse(f"{HEAD} g (float[n, 3] x) => (float[n, 3] y) {{ y = Relu(x) }}")
    for device in ("fake_npu", "cpu"):
        _outcome(model, FEEDS[name](), device)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TEXTS if "MB" not in name])
def test_oversized_files_raise_only_our_errors(name, tmp_path):
    kind, contents = TEXTS[name]
    try:
        told = read(kind, contents, tmp_path)
    except NNAdapterError:
        return
    assert kind != "commands" or told == "exit 2 of report, 2 of run, 2 of compile, 2 of compare, 2 of export"


@pytest.mark.parametrize("name", [name for name in FILES if "external" in name])
def test_external_data_stays_in_its_folder(name, tmp_path):
    source, feed = FILES[name](tmp_path)
    for device in ("fake_npu", "cpu"):
        error = _outcome(source, feed, device)
        assert error is not None and "external data file" in str(error), device


def test_value_too_large_for_any_memory_is_named():
    model = parse(f"{HEAD} g (float[65536, 1] x, float[1, 65536] y) => (float[n, m] z) {{ a = Add(x, y) z = Relu(a) }}")
    with pytest.raises(InvalidModelError, match=r"node 'Add_0' \(Add\) produces 'a' of shape \[65536, 65536\]"):
        nna.InferenceSession(model, devices="null")


def test_folding_is_limited_relative_to_the_model(monkeypatch):
    monkeypatch.setattr(limits, "FREELY_FOLDED_BYTES", 1 << 10)
    text = "<float[1, 1] w = {{1}}, int64[2] s = {{{}, 1}}> {{ c = Expand(w, s) d = Neg(c) y = Add(x, d) }}"
    for rows, folded in ((64, True), (1024, False)):
        model = parse(f"{HEAD} g (float[1, 3] x) => (float[n, 3] y) {text.format(rows)}")
        report = nna.partition_report(model, devices="fake_npu")
        assert (not any(node.op_type == "Expand" for node in report.nodes if node.device)) is folded
