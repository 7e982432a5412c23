"""Random bytes and feeds for models, rules, plans, scripts and adapter IR: nnadapter errors or results.

tests/compiled_models covers compiled models. The short form repeats the same few cases; the long form runs as many as
requested:

    NNADAPTER_FUZZ_EXAMPLES=20000 pytest -m fuzz tests/test_random_bytes.py
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import nnadapter as nna
from benchmarks.models.hostile_models import graph, info, model, node, weight
from nnadapter.drivers.faulty import read_script
from nnadapter.errors import NNAdapterError
from nnadapter.ir import protobuf
from nnadapter.planning import read_plan
from nnadapter.rules import read_rules
from tests.compiled_models.forging import forge
from tests.ir.protobuf.saved_models import network
from tests.models import HEAD, parse

_MANY = int(os.environ.get("NNADAPTER_FUZZ_EXAMPLES", "2000"))
_FAULTS = b'seed = 7\n[[fault]]\nkind = "fail"\nphase = "run"\nerror = "TransientError"\nprobability = 0.5\nnth = 3\n'
_RULES = b'[[pin]]\ndevice = "cpu"\nop_type = "Erf"\nname = "/a*"\n[limits]\nmax_segments = 4\nmin_benefit_ms = 0.2\n'


def _seed_model() -> onnx.ModelProto:
    """Return a model with a function, a branch, weights, computed shapes and a convolution."""
    body = helper.make_function("own", "F", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 17)])
    branch = helper.make_graph([node("Neg", "p", "q")], "t", [], [info("q", None)])
    nodes = [
        node("Pad", "x pads", "a"),
        node("Conv", "a w", "p", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]),
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("F", ["i"], ["f"], domain="own"),
        node("Shape", "f", "s"),
        node("ConstantOfShape", "s", "z"),
        node("Tile", "f ones", "t"),
        node("Add", "t z"),
    ]
    weights = [
        weight("pads", [0, 0, 1, 1, 0, 0, 1, 1]), weight("ones", [1, 1, 1, 1]),
        weight("w", np.ones((1, 1, 2, 2)), 1), weight("c", True, 9),
    ]  # fmt: skip
    return model(graph(nodes, [info("x", (1, 1, 4, 4))], weights=weights), [body])


def _damaged(contents: bytes, random: Random) -> bytes:
    """Return the bytes with some changed, deleted, inserted or repeated."""
    changed = bytearray(contents)
    for _ in range(random.choice((1, 1, 2, 8))):
        at, end = sorted(random.randrange(len(changed) + 1) for _ in range(2))
        kind = random.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = random.randrange(256)
        elif kind == 1:
            del changed[at : min(end, at + 16)]
        elif kind == 2:
            changed[at:at] = random.randbytes(random.randrange(1, 8))
        else:
            changed[at:at] = changed[at : min(end, at + 64)]
    return bytes(changed)


def _model(random: Random, _: Path) -> None:
    made = _seed_model()
    for _ in range(random.choice((1, 1, 2))):
        forge(random, made)
    contents = made.SerializeToString()
    contents = _damaged(contents, random) if random.random() < 0.3 else contents
    options = {"deadline_s": 5.0}
    with nna.InferenceSession(contents, devices="fake_npu", options=options) as session:
        session.run(None, {"x": np.ones((1, 1, 4, 4), np.float32)})


def _rules(random: Random, folder: Path) -> None:
    path = folder / "rules.toml"
    path.write_bytes(_damaged(_RULES, random))
    read_rules(path)


def _plan(random: Random, folder: Path) -> None:
    path, good = folder / "plan.json", folder / "good.json"
    if not good.exists():
        relu = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")
        nna.partition_report(relu, devices="null", save_plan=good)
    path.write_bytes(_damaged(good.read_bytes(), random))
    read_plan(path)


def _ir(random: Random, folder: Path) -> None:
    path, good = folder / "model.nnir", folder / "good.nnir"
    if not good.exists():
        protobuf.save(network(), good)
    path.write_bytes(_damaged(good.read_bytes(), random))
    protobuf.load(path)


def _faults(random: Random, folder: Path) -> None:
    path = folder / "faults.toml"
    path.write_bytes(_damaged(_FAULTS, random))
    read_script(path)


def _array(random: Random) -> Any:
    """Return an array of random type, rank and strides, or another object that a caller may pass."""
    dtype = random.choice(("f4", ">f4", "f8", "f2", "c8", "i8", "u1", "?", "U3", "S2", "O", "M8[s]", "V4", "f4,i4"))
    array = np.zeros([random.choice((0, 1, 2, 3, 4)) for _ in range(random.choice((0, 1, 2, 2, 2, 3, 8)))], dtype)
    array = random.choice((array, array.T, array[::-1] if array.ndim else array, np.asfortranarray(array)))
    other = (None, 3, "x", b"xx", [], [1.0], [[1.0, 2.0, 3.0]], {}, (array, array), onnxruntime.OrtValue, float("nan"))
    return random.choice((array, array, array, np.ma.array(array), random.choice(other)))


@cache
def _fed_session(device: str) -> nna.InferenceSession:
    text = f"{HEAD} g (float[n, 3] x, int64[k] s) => (float[n, 3] y, int64[k] t) {{ y = Relu(x) t = Add(s, s) }}"
    return nna.InferenceSession(parse(text), devices=device)


def _feed(random: Random, _: Path) -> None:
    session = _fed_session(random.choice(("fake_npu", "cpu")))
    good: dict[Any, Any] = {"x": np.ones((2, 3), np.float32), "s": np.arange(4)}
    for name in random.sample(["x", "s", "", "y", 3], random.choice((1, 1, 2))):
        good[name] = _array(random)
    if random.random() < 0.1:
        del good[random.choice(("x", "s"))]
    feed = random.choice((good, good, good, good, list(good.items()), None, _array(random)))
    wanted = random.choice((None, None, None, ["y"], [], ["t", "t"], ["no"], "y", [3]))
    for results in (session.run(wanted, feed), session.submit(wanted, feed).result(), *session.stream([feed])):
        assert all(isinstance(each, np.ndarray) for each in results)


_KINDS = {"model": _model, "rules": _rules, "plan": _plan, "ir": _ir, "faults": _faults, "feed": _feed}


def _try(kind: str, seed: int, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _KINDS[kind](Random(seed), folder)
        except NNAdapterError:
            return


@pytest.mark.slow
def test_opset_version_beyond_int32_is_accepted():
    """A function may import version 2 ** 40; nnadapter must not pass that number to onnx."""
    made = _seed_model()
    made.functions[0].opset_import[0].version = 2**40
    assert nna.partition_report(made.SerializeToString(), devices="fake_npu").nodes


@pytest.mark.parametrize("old", [b"Relu", b"Neg", b"Conv", b"kernel_shape", b"own"])
def test_non_utf8_names_are_an_error(old):
    """protobuf returns such names as bytes, in functions and branches too."""
    contents = _seed_model().SerializeToString()
    with pytest.raises(NNAdapterError, match="a name in it is not UTF-8"):
        nna.InferenceSession(contents.replace(old, old[:-1] + b"\xff"), devices="fake_npu")


def test_ort_value_class_as_input_is_an_error():
    with pytest.raises(NNAdapterError, match="input 'x' takes an array of float32"):
        _fed_session("fake_npu").run(None, {"x": onnxruntime.OrtValue, "s": np.arange(4)})


@pytest.mark.parametrize("kind", _KINDS)
def test_few_random_inputs_raise_only_our_errors(kind, tmp_path):
    for seed in range(25):
        _try(kind, seed, tmp_path)


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", _KINDS)
def test_many_random_inputs_raise_only_our_errors(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("strange")

    @settings(max_examples=_MANY)
    @given(st.integers(0, 2**62))
    def attempt(seed: int) -> None:
        _try(kind, seed, folder)

    attempt()
