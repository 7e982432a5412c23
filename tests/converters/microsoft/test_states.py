"""Layers with a state along a sequence, and rotations by three positions, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.candidates import prepare
from nnadapter.drivers import Reason
from nnadapter.onnx.preparation import function_body
from tests.converters.microsoft.function_node import check, model_of, refusal
from tests.converters.microsoft.test_quantized import types
from tests.converters.single_node import floats
from tests.every import for_every, for_every_pair

STATES = ("y0", "y1")


def convolution(steps=5, taps=4, *, bias=True, past=True, dilation=1, channels=(3,), last=False):
    count, length = int(np.prod(channels)), (taps - 1) * dilation
    inputs = [floats(2, count, steps), floats(count, 1, taps, seed=1)]
    inputs += [floats(count, seed=2) if bias else None, floats(2, count, length, seed=3) if past else None]
    if last:
        inputs[0] = inputs[0].swapaxes(1, 2).reshape(2, steps, *channels).copy()
        inputs[3] = inputs[3].swapaxes(1, 2).reshape(2, length, *channels).copy() if past else None
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@pytest.mark.slow
@for_every_pair(
    activation=(None, "none", "silu", "swish"), steps=(1, 5), taps=(1, 2, 4), bias=(False, True), past=(False, True)
)
def test_causal_convolutions(activation, steps, taps, bias, past):
    stated = {} if activation is None else {"activation": activation, "ndim": 1}
    inputs = convolution(steps, taps, bias=bias, past=past)
    if taps == 1 and past:
        inputs.pop()  # the state has no elements
    result = check("CausalConvWithState", inputs, stated, outputs=STATES, constant=[1], opsets=(13, 23))
    assert types(result) == ["CAUSAL_CONV"]


@for_every_pair(
    dilation=(1, 3), channels=((3,), (2, 3)), last=(False, True), past=(False, True), activation=("none", "silu")
)
def test_causal_convolution_variants(dilation, channels, last, past, activation):
    if (not last and len(channels) > 1) or (dilation, last) == (1, False):
        pytest.skip("ONNX Runtime has no such form, or it is above")
    stated = {"dilation": dilation, "channels_last": int(last), "activation": activation}
    inputs = convolution(dilation=dilation, channels=channels, last=last, past=past)
    check("CausalConvWithState", inputs, stated, outputs=STATES, constant=[1], opsets=(13, 23))


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"state_window": 2}, Reason.UNSUPPORTED_ATTRIBUTE),
        ({"ndim": 2}, Reason.UNSUPPORTED_ATTRIBUTE),
        ({"state_length": 9}, Reason.UNSUPPORTED_ATTRIBUTE),
        ({"activation": "relu"}, Reason.INVALID_NODE),
    ],
)
def test_refused_causal_convolution_variants(stated, reason):
    verdict = refusal("CausalConvWithState", convolution(), stated, outputs=STATES, constant=[1])
    assert verdict.reason is reason and next(iter(stated)) in verdict.detail


def attention(rule, heads, groups, keys, *, steps=3, past=True, single_decay=False, single_rate=False):
    inputs = [
        floats(2, steps, heads * 8),
        floats(2, steps, keys * 8, seed=1) * 0.3,
        floats(2, steps, groups * 4, seed=2),
    ]
    inputs.append(floats(2, groups, 8, 4, seed=3) if past else None)
    decay = -abs(floats(2, steps, groups * (1 if single_decay else 8), seed=4))
    inputs.append(decay if rule.startswith("gated") else None)
    rate = abs(floats(2, steps, 1 if single_rate else groups, seed=5)).clip(0, 1)
    inputs.append(rate if rule.endswith("delta") else None)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@for_every_pair(
    rule=("linear", "gated", "delta", "gated_delta"),
    heads=((2, 2, 2), (4, 2, 2), (2, 4, 4), (2, 4, 2), (1, 3, 1)),
    past=(False, True),
    single=(False, True),
)
def test_linear_attention(rule, heads, past, single):
    stated = {"q_num_heads": heads[0], "kv_num_heads": heads[1], "update_rule": rule, "chunk_size": 2}
    stated |= {"scale": 0.3} if single else {}
    inputs = attention(rule, *heads, past=past, steps=3 if past else 1, single_decay=single, single_rate=single)
    result = check("LinearAttention", inputs, stated, outputs=STATES, opsets=())
    assert types(result)[-1] == "LINEAR_ATTENTION"


def test_several_states_of_linear_attention_are_refused():
    stated = {"q_num_heads": 2, "kv_num_heads": 2, "state_window": 2}
    verdict = refusal("LinearAttention", attention("gated_delta", 2, 2, 2, past=False), stated, outputs=STATES)
    assert verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and "state_window" in verdict.detail


@for_every(dtype=(np.float32, np.float16), rate=(False, True), far=(1.0, 20.0))
def test_gates_of_linear_attention(dtype, rate, far):
    inputs = [(floats(2, 3, 4) * far).astype(dtype), floats(4, seed=1), -abs(floats(4, seed=2))]
    inputs += [floats(2, 3, 4, seed=3).astype(dtype)] if rate else []
    tolerance = 1e-5 if dtype is np.float32 else 2e-3
    check("LinearAttentionGate", inputs, outputs=2 if rate else 1, constant=[1, 2], tolerance=tolerance)


@pytest.mark.slow
@for_every_pair(
    dtype=(np.float32, np.float16), groups=(1, 3), rank=(2, 3, 4), activation=(None, "silu", "swish", "sigmoid")
)
def test_gated_normalization(dtype, groups, rank, activation):
    shape = (*(2, 3, 2)[: rank - 1], groups * 4)
    inputs = [floats(*shape).astype(dtype), floats(4, seed=1).astype(dtype), floats(*shape, seed=2).astype(dtype)]
    stated = {} if activation is None else {"activation": activation, "epsilon": 1e-3}
    tolerance = 1e-5 if dtype is np.float32 else 2e-3
    check("GatedRMSNorm", inputs, stated, constant=[1], tolerance=tolerance, opsets=(13, 18, 23))


def test_gated_norm_with_invalid_arguments_is_refused():
    inputs = [floats(2, 8), floats(4, seed=1), floats(2, 8, seed=2)]
    assert refusal("GatedRMSNorm", inputs, {"activation": "relu"}).reason is Reason.INVALID_NODE
    verdict = refusal("GatedRMSNorm", [inputs[0], floats(3), inputs[2]])
    assert verdict.reason is Reason.INVALID_NODE and "8 features for a scale of 3" in verdict.detail


def rotation(*, packed, part, dtype=np.float32, size=16, heads=3):
    angles, random = floats(12, (part or size) // 2, seed=1), np.random.default_rng(2)
    shape = (2, 5, heads * size) if packed else (2, heads, 5, size)
    positions = random.integers(0, 12, (3, 2, 5))
    return [floats(*shape).astype(dtype), positions, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]


@pytest.mark.slow
@for_every_pair(
    dtype=(np.float32, np.float16),
    packed=(False, True),
    part=(0, 12),
    layout=(0, 1, None),
    interleaved=(0, 1),
    share=((2, 3, 3), (4, 2, 2), (8, 0, 0), (2, 2, 4)),
)
def test_multimodal_rotary_embedding(dtype, packed, part, layout, interleaved, share):
    sections = [share[0] - (2 if part else 0), *share[1:]]
    stated = {"mrope_section": sections, "interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": part}
    stated |= {} if layout is None else {"mrope_layout": layout}
    tolerance = 1e-5 if dtype is np.float32 else 4e-3
    inputs = rotation(packed=packed, part=part, dtype=dtype)
    check("MRotaryEmbedding", inputs, stated, constant=[2, 3], tolerance=tolerance, opsets=(13, 23))


def test_mrope_sections_must_cover_all_pairs():
    inputs = rotation(packed=True, part=0)
    for sections in ([2, 3, 4], [8], [9, -1, 0]):
        verdict = refusal("MRotaryEmbedding", inputs, {"mrope_section": sections, "num_heads": 3}, constant=[2, 3])
        assert verdict.reason is Reason.INVALID_NODE and "three sizes with the sum 8" in verdict.detail


def test_linear_attention_has_no_body_in_old_opsets():
    stated = {"q_num_heads": 2, "kv_num_heads": 2}
    model = model_of("LinearAttention", attention("gated_delta", 2, 2, 2), stated, outputs=STATES, opset=24)
    assert function_body(prepare(model), 0) is None
