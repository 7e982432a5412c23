"""Matrices, normalizations, reductions, movements and resizes."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.errors import InputValueError
from tests.drivers.fake_npu.harness import close, floats, model_of, oracle, run, run_model
from tests.every import for_every


@pytest.mark.parametrize(
    ("x", "y", "transpose_x", "transpose_y"),
    [
        ((4, 5), (5, 6), False, False),
        ((2, 3, 4, 5), (5, 6), False, False),
        ((2, 3, 4, 5), (2, 3, 6, 5), False, True),
        ((3, 5, 4), (5, 6), True, False),
        ((2, 4, 5), (3, 1, 5, 6), False, False),
        ((5,), (5, 6), False, False),
        ((4, 5), (5,), False, False),
        ((5,), (5,), False, False),
        ((500, 600), (600, 300), False, False),
    ],
)
def test_matmul(x, y, transpose_x, transpose_y):
    x, y = floats(*x), floats(*y, seed=1)
    left, right = (np.swapaxes(part, -1, -2) if swap else part for part, swap in ((x, transpose_x), (y, transpose_y)))
    attributes = {"transpose_x": transpose_x, "transpose_y": transpose_y}
    close(run("MAT_MUL", [x, y], attributes), left @ right, 1e-4)
    fused = {"fuse_code": "relu", "fuse_parameters": ()}
    close(run("MAT_MUL", [x, y], {**attributes, **fused}), np.maximum(left @ right, 0), 1e-4)


@pytest.mark.parametrize("shape", [(1, 20), (7, 20), (2, 3, 20), (20,)])
@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_fully_connected(shape, constants):
    x, weight, bias = floats(*shape), floats(9, 20, seed=1), floats(9, seed=2)
    close(run("FULLY_CONNECTED", [x, weight, bias], constants=constants), x @ weight.T + bias, 1e-4)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("constants", [(1, 2, 3, 4), (3, 4), ()], ids=["constant", "affine computed", "computed"])
def test_batch_normalization(shape, constants):
    arrays = [floats(*shape), floats(3), floats(3, seed=1), floats(3, seed=2), np.abs(floats(3, seed=3))]
    expected = oracle("BatchNormalization", arrays, {"epsilon": 1e-3}, constants)
    close(run("BATCH_NORMALIZATION", arrays, {"epsilon": 1e-3}, constants), expected)


def test_batch_normalization_by_a_computed_mean_keeps_its_digits():
    mean = 1e5 + floats(3, seed=1)
    arrays = [mean.reshape(1, 3, 1) + floats(2, 3, 50), np.ones(3, np.float32), np.zeros(3, np.float32), mean]
    expected = (arrays[0] - mean.reshape(1, 3, 1)) / np.sqrt(1 + 1e-5)
    close(run("BATCH_NORMALIZATION", [*arrays, np.ones(3, np.float32)]), expected, 1e-6)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(axis, bias):
    x = 3 + floats(40, 30, 64)
    arrays = [x, floats(*x.shape[axis:], seed=1), *([floats(*x.shape[axis:], seed=2)] if bias else [])]
    expected = oracle("LayerNormalization", arrays, {"axis": axis})
    close(run("LAYER_NORMALIZATION", arrays, {"axis": axis}), expected, 1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_instance_normalization(shape):
    arrays = [2 + floats(*shape), floats(3, seed=1), floats(3, seed=2)]
    close(run("INSTANCE_NORMALIZATION", arrays), oracle("InstanceNormalization", arrays), 1e-4)


@pytest.mark.parametrize("size", [1, 3, 5, 15])
def test_local_response_normalization(size):
    x, attributes = floats(2, 7, 4, 5), {"size": size, "alpha": 0.1, "beta": 0.6, "bias": 1.5}
    close(run("LOCAL_RESPONSE_NORMALIZATION", [x], attributes), oracle("LRN", [x], attributes))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis):
    x = 40 * floats(30, 50, 60)
    close(run("SOFTMAX", [x], {"axis": axis}), oracle("Softmax", [x], {"axis": axis}), 1e-6)
    close(run("LOG_SOFTMAX", [x], {"axis": axis}), oracle("LogSoftmax", [x], {"axis": axis}), 1e-5)


REDUCTIONS = {"SUM": np.sum, "MEAN": np.mean, "MAX": np.max, "MIN": np.min, "PROD": np.prod}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reduction(name, axes, keepdims):
    x = floats(3, 4, 5)
    expected = REDUCTIONS[name](x, axis=axes, keepdims=keepdims)
    close(run(f"REDUCE_{name}", [x], {"axes": axes, "keepdims": keepdims}), expected)


def test_integer_reductions_wrap_around():
    x = np.full((3, 4), 100, np.int8)
    expected = np.sum(x, axis=1, dtype=np.int8)
    np.testing.assert_array_equal(run("REDUCE_SUM", [x], {"axes": (1,), "keepdims": False}), expected)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(("type_", "op_type"), [("ARG_MAX", "ArgMax"), ("ARG_MIN", "ArgMin")])
def test_arg_max_and_arg_min(type_, op_type, keepdims, last):
    x = np.random.default_rng(0).integers(0, 3, (4, 9, 2)).astype(np.float32)
    attributes = {"axis": 1, "keepdims": keepdims, "select_last_index": last}
    expected = oracle(op_type, [x], {name: int(value) for name, value in attributes.items()})
    np.testing.assert_array_equal(run(type_, [x], attributes), expected)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_running_sum(exclusive, reverse):
    x, axis = floats(3, 4, 5), np.array(1, np.int64)
    expected = oracle("CumSum", [x, axis], {"exclusive": int(exclusive), "reverse": int(reverse)})
    close(run("CUM_SUM", [x], {"axis": 1, "exclusive": exclusive, "reverse": reverse}), expected)


@pytest.mark.parametrize("largest", [True, False])
def test_top_k_keeps_the_order_of_equals(largest):
    x = np.random.default_rng(0).integers(0, 5, (3, 20, 2)).astype(np.float32)
    expected = oracle("TopK", [x, np.array([7])], {"axis": 1, "largest": int(largest)}, (1,), outputs=2)
    result = run("TOP_K", [x], {"k": 7, "axis": 1, "largest": largest})
    np.testing.assert_array_equal(result[0], expected[0])
    np.testing.assert_array_equal(result[1], expected[1])


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "int64"])
def test_movements(dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    exact = np.testing.assert_array_equal
    exact(run("RESHAPE", [x], {"shape": (4, 6)}), x.reshape(4, 6))
    exact(run("ASSIGN", [x]), x)
    exact(run("TRANSPOSE", [x], {"perm": (2, 0, 1)}), x.transpose(2, 0, 1))
    exact(run("TRANSPOSE", [x[:1]], {"perm": (1, 0, 2)}), x[:1].transpose(1, 0, 2))
    exact(run("EXPAND", [x[:, :1]], {"shape": (5, 2, 3, 4)}), np.broadcast_to(x[:, :1], (5, 2, 3, 4)))
    exact(run("EXPAND", [x], {"shape": (1, 2, 3, 4)}), x[None])
    exact(run("TILE", [x], {"repeats": (2, 1, 3)}), np.tile(x, (2, 1, 3)))
    exact(run("CONCAT", [x, x[:, :1]], {"axis": 1}), np.concatenate([x, x[:, :1]], 1))
    exact(run("CONCAT", [x], {"axis": 1}), x)
    for result, expected in zip(run("SPLIT", [x], {"axis": 2, "split": (1, 3)}), np.split(x, [1], 2), strict=True):
        exact(result, expected)


@pytest.mark.parametrize("sizes", [(1, 5), (64, 1), (100, 70), (2, 7, 90)])
@pytest.mark.parametrize(("shape", "axis"), [((3, 20), 2), ((30, 20), 2), ((4, 40), 1), ((), 0)])
def test_concat_of_parts_of_any_width(sizes, shape, axis):
    parts = [floats(*shape[:axis], size, *shape[axis:], seed=size) for size in sizes]
    np.testing.assert_array_equal(run("CONCAT", parts, {"axis": axis}), np.concatenate(parts, axis))


def test_slice_with_negative_steps():
    x = floats(5, 6)
    attributes = {"starts": (4, 1), "ends": (-6, 6), "axes": (0, 1), "steps": (-2, 2)}
    np.testing.assert_array_equal(run("SLICE", [x], attributes), x[4:-6:-2, 1:6:2])


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather(shape, dtype):
    x, indices = floats(3, 5, 2), np.random.default_rng(0).integers(-5, 5, shape).astype(dtype)
    np.testing.assert_array_equal(run("GATHER", [x, np.asarray(indices)], {"axis": 1}), np.take(x, indices, 1))


def test_gather_elements():
    x, indices = floats(3, 5), np.array([[0, -1], [2, 4]])
    expected = oracle("GatherElements", [x, indices], {"axis": 1})
    np.testing.assert_array_equal(run("GATHER_ELEMENTS", [x, indices], {"axis": 1}), expected)


def test_index_out_of_bounds_is_an_error():
    model, feeds = model_of("GATHER", [floats(3), np.array([3])], {"axis": 0})
    with pytest.raises(InputValueError, match="3 for an axis of 3"):
        run_model(model, feeds)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 2, 0), (0, -1, -2, 1)])
def test_pad(mode, pads):
    x = floats(4, 5)
    expected = oracle("Pad", [x, np.array(pads), np.array(1.5, np.float32)], {"mode": mode})
    np.testing.assert_array_equal(run("PAD", [x], {"mode": mode, "pads": pads, "value": 1.5}), expected)


SIZES = {"double": (10, 12), "down": (2, 4), "odd": (7, 11), "one": (1, 1), "mixed": (2, 13)}
MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]


@for_every(kind=["linear", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"], mode=MODES, size=SIZES.values())
def test_resize(size, mode, kind):
    x = floats(2, 3, 5, 6)
    shape = (2, 3, *size)
    scales = tuple(result / size_before for result, size_before in zip(shape, x.shape, strict=True))
    attributes = {"shape": shape, "scales": scales, "coordinate_transformation_mode": mode}
    onnx_attributes = {"coordinate_transformation_mode": mode, "mode": "linear"}
    if kind != "linear":
        attributes["nearest_mode"] = kind
        onnx_attributes |= {"mode": "nearest", "nearest_mode": kind}
    expected = oracle("Resize", [x, None, None, np.array(shape)], onnx_attributes, (3,))
    resized = run("RESIZE_LINEAR" if kind == "linear" else "RESIZE_NEAREST", [x], attributes)
    close(resized, expected, 1e-5)


@pytest.mark.parametrize(("size", "result"), [(3, 5), (3, 10), (6, 10), (9, 15)])
def test_integral_symmetric_positions_are_not_rounded_down(size, result):
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "floor"}
    scales = (1.0, 1.0, float(np.float32(result / size)), 1.0)
    scales_array = np.array(scales, np.float32)
    expected = oracle("Resize", [x, None, scales_array], {**attributes, "mode": "nearest"}, (2,))
    resized = run("RESIZE_NEAREST", [x], {**attributes, "shape": expected.shape, "scales": scales})
    np.testing.assert_array_equal(resized, expected)
