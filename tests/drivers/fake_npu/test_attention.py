import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import ModelBuilder
from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import close, floats, model_of, run, run_model, type_of


def _agrees(type_, arrays, attributes, **options):
    model, feeds = model_of(type_, arrays, attributes)
    for got, want in zip(run_model(model, feeds, **options), by_definition(model, feeds), strict=True):
        assert got.dtype == want.dtype
        close(got, want)


_MASKS = st.sampled_from([None, "bool", "float32", "vector"])


def _mask(kind, shape):
    generator = np.random.default_rng(5)
    if kind is None:
        return None
    if kind == "vector":
        return generator.random(shape[-1:]) < 0.7
    return generator.random(shape) < 0.6 if kind == "bool" else floats(*shape[2:], seed=5)


@given(
    st.integers(1, 3),
    st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    st.integers(1, 4),
    st.integers(1, 6),
    _MASKS,
    st.booleans(),
    st.fixed_dictionaries(
        {
            "is_causal": st.booleans(),
            "softcap": st.sampled_from([0.0, 1.5]),
            "offset": st.integers(0, 3),
            "left_window": st.integers(-1, 2),
            "right_window": st.integers(-1, 2),
            "scores": st.sampled_from(["none", "product", "capped", "masked", "softmax"]),
            "without_keys": st.sampled_from(["zero", "nan"]),
        }
    ),
)
def test_every_combination_of_masks(batch, heads, queries, keys, mask, ragged, attributes):
    shape = (batch, heads[0], queries, keys)
    arrays = [floats(*shape[:3], 5), floats(batch, heads[1], keys, 5, seed=1), floats(batch, heads[1], keys, 3, seed=2)]
    arrays += [_mask(mask, shape), np.arange(batch, dtype=np.int64) % (keys + 2) - 1 if ragged else None]
    while arrays[-1] is None:
        arrays.pop()
    _agrees("ATTENTION", arrays, {**attributes, "scale": 0.4})


def test_masks_and_scores_per_batch_item():
    arrays = [floats(3, 4, 3, 5), floats(3, 2, 4, 5, seed=1), floats(3, 2, 4, 6, seed=2), floats(3, 1, 3, 4) > 0]
    _agrees("ATTENTION", arrays, {"scale": 1.0, "scores": "softmax"})


def test_fully_masked_query_returns_zeros():
    query, key, value = np.full((1, 1, 2, 4), 3e38, np.float32), np.ones((1, 1, 3, 4), np.float32), floats(1, 1, 3, 2)
    query[0, 0, 1] = 1
    allowed = np.array([[False, False, False], [True, False, False]])
    output = run("ATTENTION", [query, key, value, allowed], {"scale": 1e-38})
    np.testing.assert_array_equal(output[0, 0], [[0, 0], value[0, 0, 0]])
    assert not run("ATTENTION", [query, key, value, np.zeros((2, 3), bool)], {"scale": 10.0}).any()


def test_half_precision_rounds_only_the_result():
    arrays = [floats(2, 2, 3, 8, seed=seed).astype(np.float16) for seed in range(3)]
    wide = [array.astype(np.float32) for array in arrays]
    result = run("ATTENTION", arrays, {"scale": 0.35})
    np.testing.assert_array_equal(result, run("ATTENTION", wide, {"scale": 0.35}).astype(np.float16))


def test_expanded_half_precision_does_not_round_its_weights():
    builder = ModelBuilder()
    arrays = [
        floats(*shape, seed=seed).astype(np.float16)
        for seed, shape in enumerate([(1, 2, 3, 8), (1, 2, 8, 5), (1, 2, 5, 4)])
    ]
    query, key, value = (builder.add_input(f"x{index}", type_of(array)) for index, array in enumerate(arrays))
    (scores,) = builder.add_operation("MAT_MUL", (query, key))
    (weights,) = builder.add_operation("SOFTMAX", (scores,), {"axis": 3})
    (result,) = run_model(builder.finish(builder.add_operation("MAT_MUL", (weights, value))), arrays)
    complete = run("ATTENTION", [arrays[0], np.ascontiguousarray(arrays[1].swapaxes(2, 3)), arrays[2]], {"scale": 1.0})
    np.testing.assert_array_equal(result, complete)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("batches", [1, 2])
def test_rotary_embedding(batches, pairs, interleaved):
    arrays = [floats(2, 3, 4, 6), floats(batches, 4, pairs, seed=1), floats(batches, 4, pairs, seed=2)]
    _agrees("ROTARY_EMBEDDING", arrays, {"interleaved": interleaved})


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize(("decay", "rate"), [(3, 1), (3, 3), (6, 3)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [3, 6])
def test_linear_attention(heads, rule, decay, rate, past):
    arrays = [
        floats(2, 5, 2 * heads) * 0.5,
        floats(2, 5, 6, seed=1) * 0.5,
        floats(2, 5, 12, seed=2),
        floats(2, 3, 2, 4, seed=3) if past else None,
        -np.abs(floats(2, 5, decay, seed=4)) if rule.startswith("gated") else None,
        np.abs(floats(2, 5, rate, seed=5)) * 0.3 if rule.endswith("delta") else None,
    ]
    attributes = {"query_heads": heads, "key_value_heads": 3, "scale": 0.7, "update_rule": rule}
    _agrees("LINEAR_ATTENTION", arrays, attributes)


@pytest.mark.parametrize("activation", ["none", "swish"])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_convolution(length, bias, past, activation):
    optional = [floats(3, seed=2) if bias else None, floats(2, 3, 3, seed=3) if past else None]
    _agrees("CAUSAL_CONV", [floats(2, 3, length), floats(3, 1, 4, seed=1), *optional], {"activation": activation})


def test_causal_convolution_in_parts_equals_one_run():
    x, weight = floats(2, 3, 8), floats(3, 1, 4, seed=1)
    complete, _ = run("CAUSAL_CONV", [x, weight])
    first, state = run("CAUSAL_CONV", [x[:, :, :3], weight])
    second, _ = run("CAUSAL_CONV", [x[:, :, 3:], weight, None, state])
    close(np.concatenate([first, second], 2), complete)
