"""Feeds with bad indices, lengths and counts for every operator that has any, and a checker in a process of its own.

    python -m tests.inference.hostile_feeds DEVICE [CASE ...]

prints a line for each bad value that is neither a typed error nor what ONNX Runtime or onnx's evaluator computes. A
value that ends the process, or takes longer than a second, fails as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx.parser

_X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
_IMAGE = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
_WHOLE = [-(2**63), -(2**32), -(2**31) - 1, -(2**31), -100, -1, 100, 2**28 + 1, 2**31 - 1, 2**31, 2**32 + 1, 2**63 - 1]
_REAL = [-np.inf, -1e30, -1e9, -1.0, 0.0, 1e6, 1e9, 3e9, 1e19, 1e30, np.inf, np.nan]
_SECONDS = 1.0
_MODEL = '<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3]>'


@dataclass(frozen=True, kw_only=True)
class Case:
    """Model, valid feeds, and the input that is made invalid."""

    inputs: str
    nodes: str
    feeds: dict[str, Any]
    bad: str
    outputs: str = "float y"
    constants: str = ""
    opset: int = 17
    values: Sequence[Any] = ()
    """Invalid values; defaults for the input's data type if empty."""
    places: Sequence[int] = field(default_factory=lambda: [0])
    """Flat positions for the invalid value, in turn."""

    def model(self) -> onnx.ModelProto:
        """Return the model with unknown output shapes."""
        constants = f"<{self.constants}>" if self.constants else ""
        head = _MODEL.format(opset=self.opset)
        model = onnx.parser.parse_model(f"{head} g ({self.inputs}) => ({self.outputs}) {constants} {{ {self.nodes} }}")
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        return model

    def bad_feeds(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield each invalid value with feeds that contain it."""
        right = np.asarray(self.feeds[self.bad])
        for number, value in enumerate(self.values or (_WHOLE if right.dtype.kind == "i" else _REAL)):
            wrong = right.copy()
            with np.errstate(all="ignore"):
                if right.dtype.kind == "i" and not np.iinfo(right.dtype).min <= value <= np.iinfo(right.dtype).max:
                    value = int(np.clip(value, np.iinfo(right.dtype).min, np.iinfo(right.dtype).max)) ^ number
                wrong.flat[self.places[number % len(self.places)]] = value
            yield value, {**self.feeds, self.bad: wrong}


def _of(inputs: str, nodes: str, bad: str, opset: int = 17, **feeds: Any) -> Case:
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    places = list(range(feeds[bad].size))[:4]
    return Case(inputs=inputs, nodes=nodes, bad=bad, opset=opset, feeds=feeds, places=places)


def _whole(*numbers: Any) -> Any:
    return np.int64(numbers)


def _after(case: Case, first: str, name: str = "j") -> Case:
    """Return the case with a computation applied to its invalid input."""
    nodes = case.nodes.replace(f", {case.bad})", f", {name})").replace(f", {case.bad},", f", {name},")
    assert nodes != case.nodes
    return Case(**{**case.__dict__, "nodes": f"{name} = {first} {nodes}"})


def _indices() -> dict[str, Case]:
    x = "float[2,3] x, "
    cases = {
        "Gather": _of(x + "int64[2] i", "t = Relu(x) y = Gather(t, i)", "i", x=_X, i=_whole(0, 1)),
        "Gather int32": _of(x + "int32[2] i", "t = Relu(x) y = Gather<axis=1>(t, i)", "i", x=_X, i=np.int32([0, 1])),
        "Gather of any size": _of(
            "float[N,3] x, int64[M] i", "t = Relu(x) y = Gather(t, i)", "i", x=_X, i=_whole(0, 1)
        ),
        "GatherElements": _of(
            x + "int64[2,2] i", "t = Relu(x) y = GatherElements<axis=1>(t, i)", "i", x=_X, i=_whole([0, 1], [1, -1])
        ),
        "GatherND": _of(x + "int64[2,2] i", "t = Relu(x) y = GatherND(t, i)", "i", x=_X, i=_whole([0, 1], [1, -1])),
        "GatherND of any size": _of(
            "float[N,M] x, int64[K,2] i", "t = Relu(x) y = GatherND(t, i)", "i", x=_X, i=_whole([0, 1], [1, -1])
        ),
        "GatherND batched": _of(
            x + "int64[2,1] i", "t = Relu(x) y = GatherND<batch_dims=1>(t, i)", "i", x=_X, i=_whole([0], [1])
        ),
        "Scatter": _of(
            x + "int64[2,2] i, float[2,2] u",
            "t = Relu(x) y = Scatter<axis=1>(t, i, u)",
            "i",
            opset=10,
            x=_X,
            u=_X[:, :2],
            i=_whole([0, 1], [2, 0]),
        ),
        "ScatterND": _of(
            x + "int64[2,2] i, float[2] u",
            "t = Relu(x) y = ScatterND(t, i, u)",
            "i",
            x=_X,
            u=_X[0, :2],
            i=_whole([0, 1], [1, 0]),
        ),
        "ScatterElements": _of(
            x + "int64[2,2] i, float[2,2] u",
            "t = Relu(x) y = ScatterElements<axis=1>(t, i, u)",
            "i",
            x=_X,
            u=_X[:, :2],
            i=_whole([0, 1], [1, 0]),
        ),
        "ReverseSequence": _of(
            "float[3,2] x, int64[2] i", "t = Relu(x) y = ReverseSequence(t, i)", "i", x=_X.T.copy(), i=_whole(1, 1)
        ),
        "OneHot": _of("int64[3] i", "y = OneHot(i, d, v)", "i", i=_whole(0, 1, 4)),
        "Attention lengths": _of(
            "float[2,1,2,4] q, float[2,1,5,4] k, int64[2] n",
            'y = Attention(q, k, k, "", "", "", n)',
            "n",
            opset=24,
            q=np.ones((2, 1, 2, 4), np.float32),
            k=np.ones((2, 1, 5, 4), np.float32),
            n=_whole(3, 5),
        ),
        "TensorScatter": _of(
            "float[2,5,3] x, float[2,2,3] u, int64[2] i",
            "t = Relu(x) y = TensorScatter<axis=1>(t, u, i)",
            "i",
            opset=24,
            x=np.ones((2, 5, 3), np.float32),
            u=np.zeros((2, 2, 3), np.float32),
            i=_whole(0, 3),
        ),
        "TensorScatter circular": _of(
            "float[2,5,3] x, float[2,2,3] u, int64[2] i",
            'y = TensorScatter<axis=1, mode="circular">(x, u, i)',
            "i",
            opset=24,
            x=np.ones((2, 5, 3), np.float32),
            u=np.zeros((2, 2, 3), np.float32),
            i=_whole(0, 3),
        ),
        "NegativeLogLikelihoodLoss": _of(
            x + "int64[2] i", "y = NegativeLogLikelihoodLoss(x, i)", "i", x=_X, i=_whole(0, 1)
        ),
        "SoftmaxCrossEntropyLoss": _of(
            x + "int64[2] i", "y = SoftmaxCrossEntropyLoss(x, i)", "i", x=_X, i=_whole(0, 1)
        ),
        "MaxUnpool": _of(
            "float[1,1,2,2] x, int64[1,1,2,2] i",
            "y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i)",
            "i",
            x=np.ones((1, 1, 2, 2), np.float32),
            i=_whole([[[0, 3], [8, 11]]]),
        ),
        "LSTM": _of(
            "float[4,2,3] x, float[1,8,3] w, float[1,8,2] r, int32[2] n",
            'y, h = LSTM<hidden_size=2>(x, w, r, "", n)',
            "n",
            x=np.ones((4, 2, 3), np.float32),
            w=np.ones((1, 8, 3), np.float32),
            r=np.ones((1, 8, 2), np.float32),
            n=np.int32([4, 2]),
        ),
        "GRU": _of(
            "float[4,2,3] x, float[1,6,3] w, float[1,6,2] r, int32[2] n",
            'y, h = GRU<hidden_size=2>(x, w, r, "", n)',
            "n",
            x=np.ones((4, 2, 3), np.float32),
            w=np.ones((1, 6, 3), np.float32),
            r=np.ones((1, 6, 2), np.float32),
            n=np.int32([4, 2]),
        ),
        "RotaryEmbedding": _of(
            "float[1,2,2,4] x, float[6,2] c, int64[1,2] i",
            "y = RotaryEmbedding(x, c, c, i)",
            "i",
            opset=23,
            x=np.ones((1, 2, 2, 4), np.float32),
            c=np.ones((6, 2), np.float32),
            i=_whole([0, 5]),
        ),
        "com.microsoft RotaryEmbedding": _of(
            "float[1,2,2,4] x, float[6,2] c, int64[1] i",
            "y = com.microsoft.RotaryEmbedding(x, i, c, c)",
            "i",
            x=np.ones((1, 2, 2, 4), np.float32),
            c=np.ones((6, 2), np.float32),
            i=_whole(3),
        ),
        "EmbedLayerNormalization": _of(
            "int32[1,3] i, float[7,4] w, float[5,4] p, float[4] g",
            'y, m = com.microsoft.EmbedLayerNormalization(i, "", w, p, "", g, g)',
            "i",
            i=np.int32([[0, 6, 2]]),
            w=np.ones((7, 4), np.float32),
            p=np.ones((5, 4), np.float32),
            g=np.ones(4, np.float32),
        ),
        "GroupQueryAttention": _group_query("n", n=np.int32([5]), i=None),
        "GroupQueryAttention positions": _group_query("i", n=np.int32([5]), i=_whole([5])),
        "RoiAlign batches": _roi_align("b"),
        "RoiAlign regions": _roi_align("r"),
        "MaxRoiPool": _of(
            "float[2,3,4,4] x, float[1,5] r",
            "y = MaxRoiPool<pooled_shape=[2,2]>(x, r)",
            "r",
            x=_IMAGE,
            r=np.float32([[0, 0, 0, 3, 3]]),
        ),
        "SequenceAt": _of(x + "int64 i", "s = SequenceConstruct(x, x) y = SequenceAt(s, i)", "i", x=_X, i=np.int64(0)),
        "SequenceErase": _of(
            x + "int64 i",
            "s = SequenceConstruct(x, x) e = SequenceErase(s, i) n = SequenceLength(e) y = Cast<to=1>(n)",
            "i",
            x=_X,
            i=np.int64(0),
        ),
        "ArrayFeatureExtractor": _of(
            x + "int64[2] i", "y = ai.onnx.ml.ArrayFeatureExtractor(x, i)", "i", x=_X, i=_whole(0, 1)
        ),
    }
    computed = {
        "Gather": "Mul(i, i)",
        "Gather of any size": "Mul(i, i)",
        "GatherElements": "Mul(i, i)",
        "GatherND": "Mul(i, i)",
        "GatherND of any size": "Mul(i, i)",
        "ScatterElements": "Mul(i, i)",
        "ScatterND": "Mul(i, i)",
        "ReverseSequence": "Mul(i, i)",
        "TensorScatter": "Abs(i)",
    }
    return cases | {f"{name}, computed": _after(cases[name], first) for name, first in computed.items()}


def _group_query(bad: str, n: Any, i: Any) -> Case:
    more = "" if i is None else ", int64[1,1] i"
    feeds = {
        "q": np.ones((1, 1, 32), np.float32),
        "k": np.ones((1, 1, 16), np.float32),
        "past": np.ones((1, 1, 8, 16), np.float32),
        "c": np.ones((32, 8), np.float32),
        "n": n,
    }
    return Case(
        inputs=f"float[1,1,32] q, float[1,1,16] k, float[1,1,8,16] past, float[32,8] c, int32[1] n{more}",
        nodes="y, pk, pv = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1, do_rotary=1>"
        f"(q, k, k, past, past, n, t, c, c{', i' if more else ''})",
        constants="int32[1] t = {8}",
        feeds=feeds | ({} if i is None else {"i": i}),
        bad=bad,
    )


def _roi_align(bad: str) -> Case:
    return _of(
        "float[2,3,4,4] x, float[1,4] r, int64[1] b",
        "y = RoiAlign<output_height=2, output_width=2>(x, r, b)",
        bad,
        x=_IMAGE,
        r=np.float32([[0, 0, 3, 3]]),
        b=_whole(1),
    )


def _counts() -> dict[str, Case]:
    x = "float[2,3] x, "
    number = np.int64(1)
    return {
        "TopK": _of(x + "int64[1] k", "y, j = TopK(x, k)", "k", x=_X, k=_whole(2)),
        "OneHot depth": _of("int64[2] x, int64 d", "y = OneHot(x, d, v)", "d", x=_whole(0, 1), d=np.int64(3)),
        "Slice starts": _of(x + "int64[1] k", "y = Slice(x, k, two, one)", "k", x=_X, k=_whole(0)),
        "Slice ends": _of(x + "int64[1] k", "y = Slice(x, one, k, one)", "k", x=_X, k=_whole(2)),
        "Slice axes": _of(x + "int64[1] k", "y = Slice(x, one, two, k)", "k", x=_X, k=_whole(1)),
        "Slice steps": _of(x + "int64[1] k", "y = Slice(x, zero, two, one, k)", "k", x=_X, k=_whole(1)),
        "Pad": _of(x + "int64[4] k", "y = Pad(x, k)", "k", x=_X, k=_whole(0, 1, 0, 1)),
        "Pad reflect": _of(x + "int64[4] k", 'y = Pad<mode="reflect">(x, k)', "k", x=_X, k=_whole(0, 1, 0, 1)),
        "Pad edge": _of(x + "int64[4] k", 'y = Pad<mode="edge">(x, k)', "k", x=_X, k=_whole(0, 1, 0, 1)),
        "Reshape": _of(x + "int64[2] k", "y = Reshape(x, k)", "k", x=_X, k=_whole(3, 2)),
        "Expand": _of(x + "int64[3] k", "y = Expand(x, k)", "k", x=_X, k=_whole(2, 1, 1)),
        "Tile": _of(x + "int64[2] k", "y = Tile(x, k)", "k", x=_X, k=_whole(2, 1)),
        "Range limit": _of("int64 k, int64 s", "r = Range(s, k, o) y = Cast<to=1>(r)", "k", k=np.int64(3), s=number),
        "Range start": _of("int64 k, int64 s", "r = Range(s, k, o) y = Cast<to=1>(r)", "s", k=np.int64(3), s=number),
        "Range step": _of("int64 k, int64 s", "r = Range(s, k, s) y = Cast<to=1>(r)", "s", k=np.int64(3), s=number),
        "Range of reals": _of("float k, float s", "y = Range(s, k, s)", "k", k=np.float32(3), s=np.float32(1)),
        "ConstantOfShape": _of("int64[2] k", "y = ConstantOfShape(k)", "k", k=_whole(2, 3)),
        "Resize sizes": _of(
            "float[1,1,2,3] x, int64[4] k",
            'y = Resize(x, "", "", k)',
            "k",
            x=_X[None, None],
            k=_whole(1, 1, 4, 6),
        ),
        "Resize scales": _of(
            "float[1,1,2,3] x, float[4] k",
            'y = Resize(x, "", k)',
            "k",
            x=_X[None, None],
            k=np.float32([1, 1, 2, 2]),
        ),
        "Upsample": _of(
            "float[1,1,2,3] x, float[4] k",
            "y = Upsample(x, k)",
            "k",
            opset=9,
            x=_X[None, None],
            k=np.float32([1, 1, 2, 2]),
        ),
        "CenterCropPad": _of(x + "int64[2] k", "y = CenterCropPad(x, k)", "k", opset=18, x=_X, k=_whole(3, 2)),
        "Split": _of(x + "int64[2] k", "y, z = Split<axis=1>(x, k)", "k", x=_X, k=_whole(1, 2)),
        "SplitToSequence": _of(
            x + "int64 k",
            "s = SplitToSequence<axis=1>(x, k) y = SequenceAt(s, o0)",
            "k",
            x=_X,
            k=np.int64(2),
        ),
        "CumSum": _of(x + "int64 k", "y = CumSum(x, k)", "k", x=_X, k=number),
        "Unsqueeze": _of(x + "int64[1] k", "y = Unsqueeze(x, k)", "k", x=_X, k=_whole(1)),
        "Squeeze": _of("float[2,1,3] x, int64[1] k", "y = Squeeze(x, k)", "k", x=_X[:, None], k=_whole(1)),
        "ReduceSum": _of(x + "int64[1] k", "y = ReduceSum(x, k)", "k", x=_X, k=_whole(1)),
        "ReduceMax": _of(x + "int64[1] k", "y = ReduceMax(x, k)", "k", opset=18, x=_X, k=_whole(1)),
        "Trilu": _of(x + "int64 k", "y = Trilu(x, k)", "k", x=_X, k=number),
        "HannWindow": _of("int64 k", "y = HannWindow(k)", "k", k=np.int64(8)),
        "HammingWindow": _of("int64 k", "y = HammingWindow(k)", "k", k=np.int64(8)),
        "BlackmanWindow": _of("int32 k", "y = BlackmanWindow(k)", "k", k=np.int32(8)),
        "MelWeightMatrix bins": _of("int64 k", "y = MelWeightMatrix(k, m, r, f, e)", "k", k=np.int64(4)),
        "MelWeightMatrix length": _of("int64 k", "y = MelWeightMatrix(m, k, r, f, e)", "k", k=np.int64(16)),
        "DFT length": _of(
            "float[1,8,1] x, int64 k", "y = DFT<axis=1>(x, k)", "k", x=np.ones((1, 8, 1), np.float32), k=np.int64(8)
        ),
        "DFT axis": _of(
            "float[1,8,1] x, int64 k", 'y = DFT(x, "", k)', "k", opset=20, x=np.ones((1, 8, 1), np.float32), k=number
        ),
        "STFT step": _of(
            "float[1,16,1] x, int64 k", 'y = STFT(x, k, "", m)', "k", x=np.ones((1, 16, 1), np.float32), k=np.int64(2)
        ),
        "STFT length": _of(
            "float[1,16,1] x, int64 k", 'y = STFT(x, m, "", k)', "k", x=np.ones((1, 16, 1), np.float32), k=np.int64(8)
        ),
        "NonMaxSuppression": _of(
            "float[1,2,4] x, float[1,1,2] s, int64[1] k",
            "n = NonMaxSuppression(x, s, k) y = Cast<to=1>(n)",
            "k",
            x=np.float32([[[0, 0, 1, 1], [2, 2, 3, 3]]]),
            s=np.ones((1, 1, 2), np.float32),
            k=_whole(2),
        ),
        "Col2Im": _of(
            "float[1,4,4] x, int64[2] k",
            "y = Col2Im(x, k, b)",
            "k",
            opset=18,
            x=np.ones((1, 4, 4), np.float32),
            k=_whole(3, 3),
        ),
        "AffineGrid": _of(
            "float[1,2,3] x, int64[4] k", "y = AffineGrid(x, k)", "k", opset=20, x=_X[None], k=_whole(1, 1, 2, 3)
        ),
    }


_CONSTANTS = {
    "v": "float[2] v = {0.0, 1.0}",
    "d": "int64 d = {5}",
    "zero": "int64[1] zero = {0}",
    "one": "int64[1] one = {1}",
    "two": "int64[1] two = {2}",
    "o": "int64 o = {1}",
    "o0": "int64 o0 = {0}",
    "m": "int64 m = {8}",
    "r": "int64 r = {8000}",
    "f": "float f = {0.0}",
    "e": "float e = {4000.0}",
    "b": "int64[2] b = {2, 2}",
}


def _completed(case: Case) -> Case:
    """Return the case with the constants that its nodes read."""
    if case.constants:
        return case
    words = set(case.nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()) - set(case.feeds)
    made = {part.split("=")[0].strip().split(",")[-1].strip() for part in case.nodes.split(")")}
    names = [name for name in _CONSTANTS if name in words - made]
    return Case(**{**case.__dict__, "constants": ", ".join(_CONSTANTS[name] for name in names)})


CASES = {name: _completed(case) for name, case in (_indices() | _counts()).items()}


@cache
def oracles(name: str) -> list[Any]:
    """Return the reference engines: ONNX Runtime without optimizations and onnx's evaluator."""
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    case, options = CASES[name], onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, 4
    found = []
    for make in (
        lambda: onnxruntime.InferenceSession(case.model().SerializeToString(), options, ["CPUExecutionProvider"]),
        lambda: ReferenceEvaluator(case.model()),
    ):
        try:
            found.append(make().run)
        except Exception:  # noqa: BLE001  this oracle lacks the operator
            continue
    return found


def check(name: str, device: str) -> Iterator[str]:
    """Yield what is wrong about a case on a device, a line for each invalid value."""
    import nnadapter as nna

    case = CASES[name]
    devices = device if device == "cpu" else [device, "cpu"]
    with nna.InferenceSession(case.model(), devices=devices) as session:
        session.run(None, case.feeds)
        for value, feeds in case.bad_feeds():
            print("at", name, value, flush=True)
            started, computing = time.perf_counter(), time.process_time()
            try:
                result = session.run(None, feeds)[0]
            except nna.errors.InvalidInputError:
                result = None
            except Exception as error:  # noqa: BLE001  not a typed error
                yield f"{value}: {type(error).__name__}: {error}"
                continue
            # Other load on the machine distorts the wall clock.
            seconds = min(time.perf_counter() - started, time.process_time() - computing)
            if seconds > _SECONDS:
                yield f"{value}: took {seconds:.1f} s"
            elif result is not None and not _is_right(name, feeds, result):
                yield f"{value}: computed {str(result)[:60]!r}"
        session.run(None, case.feeds)


def _is_right(name: str, feeds: dict[str, Any], result: Any) -> bool:
    if np.asarray(result).size > 10**8:
        return False
    for run in oracles(name):
        try:
            expected = run(None, feeds)[0]
        except Exception:  # noqa: BLE001  refused, as a typed error would
            continue
        if np.shape(expected) == np.shape(result) and np.allclose(expected, result, 1e-3, 1e-3, equal_nan=True):
            return True
    return False


def run_in_child(device: str, names: Sequence[str] = ()) -> list[str]:
    """Return all faults on a device, found in a child process with memory checks; a crash is a fault."""
    names, checker = list(names or CASES), find_library("c_malloc_debug")
    environment = {
        **os.environ,
        "MALLOC_PERTURB_": "165",
        "MALLOC_CHECK_": "3",
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "PYTHONWARNINGS": "ignore",
        **({"LD_PRELOAD": checker} if checker else {}),
    }
    faults = list[str]()
    while names:
        words = [sys.executable, "-m", "tests.inference.hostile_feeds", device, *names]
        made = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        lines = made.stdout.splitlines()
        faults += [line[6:] for line in lines if line.startswith("wrong ")]
        ended = [line[5:] for line in lines if line.startswith("done ")]
        names = names[len(ended) :]
        if names and made.returncode == 0:
            raise AssertionError(made.stderr)
        if names:
            last = next((line for line in reversed(lines) if line.startswith("at ")), "at its start")
            faults.append(f"{device}: {names.pop(0)}: ended with {made.returncode} {last}: {made.stderr[-300:]}")
    return faults


def main(device: str, *names: str) -> None:
    """Check cases in this process."""
    for name in names or CASES:
        try:
            for wrong in check(name, device):
                print(f"wrong {device}: {name}: {wrong}", flush=True)
        except Exception as error:  # noqa: BLE001  an invalid case, or a session that does not open
            print(f"wrong {device}: {name}: {type(error).__name__}: {str(error)[:300]!r}", flush=True)
        print(f"done {name}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
