"""Fused ops with random sizes, attributes and absent inputs, compared with ONNX Runtime; many with `-m sweep`."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.single_node import floats


def fused_matmul(random):
    batch, (rows, inner, columns) = random.choice([(), (2,), (3, 2)]), random.choices(range(1, 5), k=3)
    left, right = floats(*batch, rows, inner), floats(*batch, inner, columns, seed=1)
    flags = {name: random.randrange(2) for name in ("transA", "transB")}
    left = left.swapaxes(-1, -2).copy() if flags["transA"] else left
    right = right.swapaxes(-1, -2).copy() if flags["transB"] else right
    return [left, right], {**flags, "alpha": random.choice([1.0, 0.3])}, {}


def skip_layer_normalization(random):
    batch, steps, width = *random.choices(range(1, 4), k=2), random.choice([4, 8])
    optional = [floats(width, seed=seed) if random.randrange(2) else None for seed in (3, 4)]
    inputs = [floats(batch, steps, width), floats(batch, steps, width, seed=1), floats(width, seed=2), *optional]
    return inputs, {"epsilon": random.choice([1e-5, 1e-2])}, {"outputs": random.choice([1, ("y", "", "", "s")])}


def attention(random):
    batch, steps, heads = random.choices(range(1, 4), k=3)
    width, past = heads * random.choice([4, 8]), random.choice([0, 0, 2])
    total = steps + past
    ends, starts = [random.randint(2, total + 1) for _ in range(batch)], [random.randint(0, 1) for _ in range(batch)]
    masks = [None, masked(random, batch, total), np.ones((1, 1), np.int32)]
    masks += [np.array(each, np.int32) for each in (ends, [*ends, *starts])]
    inputs = [floats(batch, steps, 6), floats(6, 3 * width, seed=1), floats(3 * width, seed=2), random.choice(masks)]
    inputs.append(floats(2, batch, heads, past, width // heads, seed=3) if past else None)
    inputs.append(
        floats(random.choice([1, batch]), heads, steps, total, seed=4) if random.randrange(2) and not past else None
    )
    attributes = {"num_heads": heads, "unidirectional": random.randrange(2)}
    return inputs, attributes, {"constant": [1, 2], "outputs": 2 if past else 1}


def multi_head_attention(random):
    batch, steps, heads = random.choices(range(1, 4), k=3)
    keys, size, past = random.randint(1, 5), random.choice([4, 8]), random.choice([0, 0, 3])
    width, total = heads * size, keys + past
    inputs = [floats(batch, steps, width), *(floats(batch, keys, width, seed=seed) for seed in (1, 2))]
    inputs.append(floats(3 * width, seed=3) if random.randrange(2) else None)
    inputs.append(random.choice([None, masked(random, batch, total)]))
    inputs.append(floats(1, random.choice([1, heads]), steps, total, seed=4) if random.randrange(2) else None)
    inputs += [floats(batch, heads, past, size, seed=seed) for seed in (5, 6)] if past else []
    attributes = {"num_heads": heads, **({"scale": 0.3} if random.randrange(2) else {})}
    return inputs, attributes, {"constant": [3] if inputs[3] is not None else [], "outputs": 3 if past else 1}


def group_query_attention(random):
    groups, shared, size = random.choice([1, 2]), random.choice([1, 2, 3]), 16
    batch, past = random.choice([1, 1, 2]), random.choice([0, 1, 4])
    steps = random.randint(1, 4) if batch == 1 or not past else 1
    heads, total = groups * shared, steps + past
    inputs = [floats(batch, steps, count * size, seed=seed) for seed, count in enumerate((heads, groups, groups))]
    inputs += [floats(batch, groups, past, size, seed=seed) for seed in (3, 4)]
    inputs += [np.full(batch, total - 1, np.int32), np.array([total], np.int32)]
    attributes = {"num_heads": heads, "kv_num_heads": groups}
    if random.randrange(2):
        angles = floats(16, size // 2, seed=7)
        inputs += [np.cos(angles), np.sin(angles)]
        inputs += [np.array([random.choices(range(12), k=steps) for _ in range(batch)])] if random.randrange(2) else []
        attributes |= {"do_rotary": 1, "rotary_interleaved": random.randrange(2)}
    for name, values in {
        "softcap": [2.0],
        "local_window_size": [1, 2, 3],
        "smooth_softmax": [1],
        "scale": [0.2],
        "causal": [0],
    }.items():
        if not random.randrange(3):
            attributes[name] = random.choice(values)
    if not attributes.get("causal", 1):
        attributes.pop("local_window_size", None)
    return inputs, attributes, {"constant": [6], "outputs": 3}


def masked(random, batch, keys):
    """Return a mask with at least one key per text."""
    mask = np.array([[random.randrange(2) for _ in range(keys)] for _ in range(batch)], np.int32)
    mask[:, 0] = 1
    return mask


FORMS = {
    "FusedMatMul": fused_matmul,
    "SkipLayerNormalization": skip_layer_normalization,
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": group_query_attention,
}


@pytest.mark.parametrize(
    "numbers", [range(6), pytest.param(range(6, 400), marks=pytest.mark.sweep)], ids=["few", "many"]
)
@pytest.mark.parametrize("op_type", FORMS)
def test_random_forms(op_type, numbers):
    for number in numbers:
        random = Random(number)
        inputs, attributes, keywords = FORMS[op_type](random)
        while inputs[-1] is None:
            inputs.pop()
        check(op_type, inputs, attributes, opsets=(random.choice([13, 18]),), tolerance=2e-4, **keywords)
