from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import ml_dtypes
import numpy as np
import pytest

from nnadapter.ir import DataType, Layout, Model, ModelBuilder, OperandType, Quantization, digest, to_text

_GOLDEN = """\
input %0 "x": float32[1, 2, 4, 4]
constant %1 "w": float32[2, 2, 1, 1] sha256 374708fff7719dd5
%2 "c": float32[1, 2, 4, 4] = CONV_2D(%0, %1, -) {dilations=[1, 1], fuse_code="clip", fuse_parameters=[0.0, 6.0], \
group=1, pads=[0, 0, 0, 0], strides=[1, 1]} from "conv", "clip"
%3 "t": float32[1, 4, 4, 2] NHWC = TRANSPOSE(%2) {output_layout="NHWC", perm=[0, 2, 3, 1]}
%4 "v": float32[1, 4, 4, 1] NHWC, %5 "i": int64[1, 4, 4, 1] NHWC = TOP_K(%3) {axis=3, k=1, largest=true, sorted=true} \
from "top \\"k\\""
output %4
output %5
output %0
"""


def _model(weight: float = 0.0) -> Model:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 2, 4, 4)))
    w = builder.add_constant("w", np.full((2, 2, 1, 1), weight, np.float32))
    fused = {"fuse_code": "clip", "fuse_parameters": (0, 6)}
    (c,) = builder.add_operation("CONV_2D", (x, w, -1), fused, outputs=["c"], origins=["conv", "clip"])
    order = {"perm": (0, 2, 3, 1), "output_layout": "NHWC"}
    (t,) = builder.add_operation("TRANSPOSE", (c,), order, outputs=["t"])
    v, i = builder.add_operation("TOP_K", (t,), {"k": 1, "axis": 3}, outputs=["v", "i"], origins=['top "k"'])
    return builder.finish([v, i, x])


def test_text_equals_the_golden_text():
    assert to_text(_model()) == _GOLDEN


def test_text_shows_the_beginning_of_the_contents_digest():
    assert sha256(np.zeros(4, np.float32).tobytes()).hexdigest()[:16] in _GOLDEN


def test_equal_contents_have_equal_digests():
    assert digest(_model()) == digest(_model())
    assert len(digest(_model())) == 64


def test_digest_sees_a_weight_change():
    assert digest(_model(0.0)) != digest(_model(1.0))
    lines = [set(to_text(_model(weight)).splitlines()) for weight in (0.0, 1.0)]
    assert [line.split()[0] for line in lines[0] - lines[1]] == ["constant"]


def test_text_shows_quantization():
    along = Quantization(scale=(0.5, 0.25), zero_point=(0, -1), axis=0)
    builder = ModelBuilder()
    w = builder.add_constant("w", np.zeros(2, np.int8), along)
    x = builder.add_input(
        "x", OperandType(DataType.UINT8, (), quantization=Quantization(scale=(2.0,), zero_point=(9,)))
    )
    text = to_text(builder.finish([w, x]))
    assert '"w": int8[2] scale [0.5, 0.25] zero_point [0, -1] along 0 sha256' in text
    assert '"x": uint8[] scale [2.0] zero_point [9]\n' in text


@pytest.mark.parametrize(
    "array",
    [np.zeros((), np.float32), np.zeros((0, 3)), np.ones(3, ml_dtypes.bfloat16), np.ones((2, 2), ml_dtypes.int4)],
)
def test_constants_of_every_shape_and_type_have_a_digest(array):
    builder = ModelBuilder()
    text = to_text(builder.finish([builder.add_constant("c", array)]))
    assert sha256(array.tobytes()).hexdigest()[:16] in text


@pytest.mark.parametrize(
    "change",
    [
        lambda model: replace(model, outputs=model.outputs[::-1]),
        lambda model: replace(model, operations=model.operations[:-1]),
        lambda model: replace(model, operations=(replace(model.operations[0], origins=()), *model.operations[1:])),
        lambda model: replace(model, operands=(replace(model.operands[0], name="z"), *model.operands[1:])),
        lambda model: replace(model, operands=(_renamed_layout(model), *model.operands[1:])),
    ],
)
def test_every_difference_changes_the_text(change):
    assert to_text(change(_model())) != to_text(_model())


def _renamed_layout(model: Model) -> object:
    return replace(model.operands[0], type=replace(model.operands[0].type, layout=Layout.NHWC))
