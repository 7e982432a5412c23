import numpy as np
import pytest

from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import close, floats, model_of, oracle, run, run_model
from tests.every import for_every


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("scale", [(), (4,), (3, 1), (1, 3, 4), (2, 1, 1)])
def test_rms_normalization(axis, scale):
    x, factors = floats(2, 3, 4), floats(*scale, seed=1)
    wide = x.astype(np.float64)
    norm = np.sqrt((wide**2).mean(tuple(range(axis, 3)), keepdims=True) + 1e-2)
    close(
        run("RMS_NORMALIZATION", [x, np.asarray(factors, np.float32)], {"axis": axis, "epsilon": 1e-2}),
        wide / norm * factors,
    )


def test_rms_normalization_of_many_rows():
    x, scale = floats(700, 100), floats(100, seed=1)
    close(run("RMS_NORMALIZATION", [x, scale], {"axis": 1}), oracle("RMSNormalization", [x, scale], opset=23))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lp_normalization(axis, p):
    x = floats(2, 3, 4)
    x[0, :, 1] = 0
    x[1, :, 1] = 0
    x[1, 2] = 0
    model, feeds = model_of("LP_NORMALIZATION", [x], {"axis": axis, "p": p})
    close(run_model(model, feeds)[0], by_definition(model, feeds)[0])
    if axis == 1:
        close(run_model(model, feeds)[0], oracle("LpNormalization", [x], {"axis": axis, "p": p}))


@pytest.mark.parametrize("axes", [(0,), (0, 2, 3), (2, 3), (0, 1, 2, 3)])
def test_mean_variance_normalization(axes):
    x = floats(2, 3, 4, 5)
    result = run("MEAN_VARIANCE_NORMALIZATION", [x], {"axes": axes})
    close(result, oracle("MeanVarianceNormalization", [x], {"axes": axes}, opset=13))


@pytest.mark.slow
@for_every(
    labels=[np.int32, np.int64],
    trailing_shape=[(), (4,), (2, 3)],
    weighted=[False, True],
    ignored=[False, True],
    reduction=["none", "sum", "mean"],
)
def test_losses(labels, trailing_shape, weighted, ignored, reduction):
    target = np.random.default_rng(1).integers(0, 5, (3, *trailing_shape)).astype(labels)
    attributes = {"reduction": reduction, **({"ignore_index": int(target.flat[0])} if ignored else {})}
    arrays = [floats(3, 5, *trailing_shape), target, *([np.abs(floats(5, seed=2))] if weighted else [])]
    result = run("NEGATIVE_LOG_LIKELIHOOD_LOSS", arrays, attributes)
    close(result, oracle("NegativeLogLikelihoodLoss", arrays, attributes))
    loss, logarithms = run("SOFTMAX_CROSS_ENTROPY_LOSS", arrays, attributes)
    expected, probabilities = oracle("SoftmaxCrossEntropyLoss", arrays, attributes, outputs=2)
    close(loss, expected)
    close(logarithms, probabilities)


def test_ignored_label_may_be_out_of_range():
    x, target = floats(3, 4), np.array([1, -100, 3], np.int64)
    x[1] = np.inf
    result = run("NEGATIVE_LOG_LIKELIHOOD_LOSS", [x, target], {"ignore_index": -100})
    close(result, -(x[0, 1] + x[2, 3]) / 2)


@pytest.mark.parametrize("length", [5, 6, 7])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("parts", "inverse", "onesided"),
    [(1, False, False), (2, False, False), (2, True, False), (1, False, True), (2, True, True)],
)
def test_fourier_transform(parts, inverse, onesided, axis, length):
    attributes = {"axis": axis, "length": length, "inverse": inverse, "onesided": onesided}
    model, feeds = model_of("DFT", [floats(6, 6, 3, parts)], attributes)
    close(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize(("parts", "onesided"), [(1, True), (1, False), (2, False)])
@pytest.mark.parametrize(("step", "length"), [(1, 4), (3, 5), (4, 16)])
def test_short_time_fourier_transform(step, length, parts, onesided, window):
    arrays = [floats(2, 16, parts), *([floats(length, seed=1)] if window else [])]
    model, feeds = model_of("STFT", arrays, {"frame_step": step, "frame_length": length, "onesided": onesided})
    close(run_model(model, feeds)[0], by_definition(model, feeds)[0])
