from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.microsoft.function_node import check, refusal
from tests.converters.single_node import floats

HEADS = {"num_heads": 4, "kv_num_heads": 2}
SIZE, LONGEST = 16, 16


def inputs_of(batch=1, steps=1, past=0, room=0, *, lengths=None, packed=False, rotary=True):
    """Return inputs for this many texts, new keys, cached keys and cache slots (0: as many as cached keys)."""
    heads, groups, room = HEADS["num_heads"], HEADS["kv_num_heads"], room or past
    parts = [floats(batch, steps, count * SIZE, seed=count) for count in (heads, groups, groups)]
    parts = [np.concatenate(parts, 2), None, None] if packed else parts
    cache = [floats(batch, groups, room, SIZE, seed=seed) for seed in (5, 6)]
    lengths = [past + steps - 1] * batch if lengths is None else lengths
    inputs = [*parts, *cache, np.array(lengths, np.int32), np.array([past + steps], np.int32)]
    angles = floats(LONGEST, SIZE // 2, seed=7)
    return [*inputs, np.cos(angles), np.sin(angles)] if rotary else inputs


def check_group_query(inputs, attributes=None, constant=(6, 7, 8), *, opsets=(13, 21), **keywords):
    known = [position for position in constant if position < len(inputs)]
    given = {**HEADS, **({"do_rotary": 1} if len(inputs) > 8 and inputs[7] is not None else {}), **(attributes or {})}
    check("GroupQueryAttention", inputs, given, constant=known, outputs=3, opsets=opsets, **keywords)


@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 4), (3, 4)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_one_sequence(steps, past, packed, interleaved):
    check_group_query(inputs_of(1, steps, past, packed=packed), {"rotary_interleaved": interleaved}, opsets=())


@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 4)])
def test_cache_larger_than_its_contents(steps, past):
    filled = (slice(None), slice(None), slice(0, steps + past))
    check_group_query(inputs_of(1, steps, past, 9), valid=(None, filled, filled), opsets=())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [{"softcap": 5.0}, {"smooth_softmax": 1}, {"local_window_size": 2}, {"scale": 0.2}],
)
@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 4)])
def test_attributes(batch, attributes, steps, past):
    check_group_query(inputs_of(batch, steps, past, rotary=False), attributes, opsets=())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 4)])
def test_attention_sinks_per_head(batch, steps, past):
    given = inputs_of(batch, steps, past, rotary=False)
    check_group_query([*given, None, None, None, None, floats(HEADS["num_heads"], seed=8) * 4], constant=(6, 11))


@pytest.mark.parametrize(
    ("batch", "steps", "past", "room", "lengths"),
    [
        (1, 4, 0, 0, [3]),
        (2, 4, 0, 0, [3, 1]),
        (2, 4, 0, 6, [2, 3]),
        (1, 2, 3, 0, [4]),
        (1, 2, 3, 8, [4]),
        (1, 2, 3, 8, [2]),
    ],
)
def test_noncausal_queries_attend_to_all_keys(batch, steps, past, room, lengths):
    valid = (slice(None), slice(None), slice(0, min(lengths) + 1))
    inputs = inputs_of(batch, steps, past, room, lengths=lengths, rotary=False)
    check_group_query(inputs, {"causal": 0}, valid=(None, valid, valid))


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, HEADS["num_heads"]])
@pytest.mark.parametrize(("steps", "past", "room"), [(4, 0, 0), (4, 0, 6), (2, 3, 0), (2, 3, 8)])
def test_attention_bias(steps, past, room, heads):
    filled = (slice(None), slice(None), slice(0, steps + past))
    inputs = [*inputs_of(1, steps, past, room, rotary=False), None, None, None]
    inputs.append(floats(1, heads, steps, steps + past, seed=8))
    check_group_query(inputs, constant=(6,), valid=(None, filled, filled))


@pytest.mark.slow
@pytest.mark.parametrize("positions", [[[5, 1, 9]], [[5, 6, 7], [0, 3, 2]], [[2, 0, 0], [0, 1, 2]]])
@pytest.mark.parametrize("past", [0, 4])
def test_explicit_position_ids(positions, past):
    """Every position counts if there is a cache; then each of several texts has one new token."""
    positions = np.array(positions)
    positions = positions[:, :1] if past and len(positions) > 1 else positions
    inputs = [*inputs_of(*positions.shape, past), positions]
    check_group_query(inputs)


def test_sequences_of_several_lengths():
    inputs = inputs_of(2, 1, 4, lengths=[4, 2])
    valid = [(slice(None), slice(None), slice(0, 3))] * 2
    check_group_query(inputs, valid=(None, *valid), opsets=())


def test_padded_prompt():
    """`lengths` counts, not the total length: the prompt was padded."""
    valid = [(slice(None), slice(None), slice(0, 4))] * 2
    check_group_query(inputs_of(1, 1, 5, lengths=[3]), valid=(None, *valid), opsets=())


def test_prompt_of_several_sequences():
    check_group_query(inputs_of(2, 5, 0, lengths=[4, 4]), opsets=())


def test_unconvertible_group_query_attention_is_refused():
    inputs = inputs_of(1, 1, 4, rotary=False)
    assert refusal("GroupQueryAttention", inputs, HEADS, outputs=3).reason is Reason.NOT_CONSTANT
    attributes = {**HEADS, "k_quant_type": "PER_TENSOR"}
    assert "'PER_TENSOR'" in refusal("GroupQueryAttention", inputs, attributes, outputs=3, constant=[6]).detail
    attributes = {**HEADS, "causal": 0, "local_window_size": 2}
    assert "'causal' is 0" in refusal("GroupQueryAttention", inputs, attributes, outputs=3, constant=[6]).detail


@pytest.mark.parametrize("positions", [np.array([2]), np.array([[0, 3, 1], [5, 6, 7]])])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["packed", "apart", "in part"])
def test_rotary_embedding(positions, interleaved, form):
    x = floats(2, 3, 16) if form != "apart" else floats(2, 2, 3, 8)
    pairs = 2 if form == "in part" else 4
    part = {"num_heads": 2, "rotary_embedding_dim": 4} if form == "in part" else {}
    angles = floats(10, pairs, seed=1)
    inputs = [x, positions.astype(np.int64), np.cos(angles), np.sin(angles)]
    check("RotaryEmbedding", inputs, {"interleaved": interleaved, **part}, constant=[2, 3], opsets=(13, 21))
