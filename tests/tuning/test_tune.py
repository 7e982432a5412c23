"""`nna.tune` on a simulated device, whose times and numbers are exact."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter import errors
from tests.models import HEAD

pytest.importorskip("scipy")

NPU = ("fake_npu", {"clock": "simulated", "peak_gflops": 60.0, "bandwidth_gbs": 60.0})
NOT_ON_THE_CPU = nna.Rules(bans=(nna.Ban(device="cpu", name="*"),))
"""The CPU's time is real, so it may win on a fast machine."""
LAYERS, CHANNELS = 6, 16


def network(planted: int | None = None) -> onnx.ModelProto:
    """A chain of convolutions; the planted one has two channels 1,000 times as large, which the next one undoes."""
    generator = np.random.default_rng(0)
    lines, arrays, size = [], {}, 3
    for layer in range(LAYERS):
        weight = generator.normal(0, 1, (CHANNELS, size, 3, 3)) * 1.6 / np.sqrt(size * 9)
        bias = generator.normal(0, 0.1, CHANNELS)
        if planted == layer:
            weight[:2], bias[:2] = weight[:2] * 1000, bias[:2] * 1000
        if planted is not None and planted + 1 == layer:
            weight[:, :2] /= 1000
        arrays |= {f"w{layer}": weight.astype(np.float32), f"b{layer}": bias.astype(np.float32)}
        source = "x" if not layer else f"r{layer - 1}"
        lines.append(f"c{layer} = Conv<pads: ints = [1, 1, 1, 1]>({source}, w{layer}, b{layer})")
        lines.append(f"r{layer} = Relu(c{layer})")
        size = CHANNELS
    body = "\n".join([*lines, f"p = GlobalAveragePool(r{LAYERS - 1})", "y = Flatten(p)"])
    model = onnx.parser.parse_model(f"{HEAD} net (float[N, 3, 32, 32] x) => (float[N, {CHANNELS}] y) {{ {body} }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(1)
    return [{"x": generator.normal(0, 1, (1, 3, 32, 32)).astype(np.float32)} for _ in range(12)]


def host_outputs(model: onnx.ModelProto, data) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0] for feed in data])


def sqnr(got: np.ndarray, expected: np.ndarray) -> float:
    with np.errstate(divide="ignore"):  # equal outputs
        return float(10 * np.log10((expected.astype(np.float64) ** 2).sum() / ((got - expected) ** 2).sum()))


@pytest.fixture(scope="module")
def plain(data):
    return nna.tune(network(), NPU, data, max_drop=30, rules=NOT_ON_THE_CPU)


@pytest.fixture(scope="module")
def planted(data):
    return nna.tune(network(planted=2), NPU, data, max_drop=30, rules=NOT_ON_THE_CPU)


def test_tuned_model_is_within_the_budget_on_the_data(plain, data):
    with plain.session() as session:
        got = np.concatenate([session.run(None, feed)[0] for feed in data])
    assert sqnr(got, host_outputs(network(), data)) >= 30
    assert plain.achieved >= 30
    assert plain.held_out >= 30


def test_tuned_model_is_faster_than_float_on_the_device(plain):
    assert plain.time < plain.float_time
    assert any(unit.precision.startswith("w8a8") for unit in plain.units)


def test_layer_with_outliers_is_raised_and_few_others(planted, data):
    raised = [unit.name for unit in planted.units if not unit.is_quantized]
    assert len(raised) <= 3
    assert len(raised) < LAYERS
    alone = {unit.name: unit.damage_alone_db for unit in planted.units}
    worst = min(alone, key=alone.get)
    assert worst in raised
    assert next(unit.reason for unit in planted.units if unit.name == worst)
    with planted.session() as session:
        got = np.concatenate([session.run(None, feed)[0] for feed in data])
    assert sqnr(got, host_outputs(network(planted=2), data)) >= 30


def test_report_has_all_facts(planted):
    facts = json.loads(planted.to_json())
    assert facts["units"] and facts["pareto"]
    assert facts["evaluations"] >= 1
    assert facts["bound"] <= facts["time"] * (1 + 1e-9) or facts["gap"] == 0
    assert sum(point["is_best"] for point in facts["pareto"]) == 1
    assert "in place" in str(planted)
    assert "<svg" in planted.to_html()


def test_points_of_the_front_are_not_dominated(planted):
    front = [point for point in planted.pareto if point.on_front]
    assert all(later.score > earlier.score for earlier, later in pairwise(front))


def test_metric_gets_the_outputs_and_items_of_the_same_samples(data):
    expected = host_outputs(network(), data)
    pairs = [(feed, label) for feed, label in zip(data, expected, strict=True)]
    seen = []

    def accuracy(outputs, items):
        seen.append(len(items))
        assert len(outputs) == len(items)
        return [-float(np.abs(arrays[0][0] - label).max()) for arrays, (_, label) in zip(outputs, items, strict=True)]

    report = nna.tune(network(), NPU, pairs, accuracy, max_drop=0.05)
    assert report.baseline == pytest.approx(0, abs=1e-4)
    assert report.drop <= 0.05
    assert report.held_out_baseline == pytest.approx(0, abs=1e-4)
    assert {10, 2} >= set(seen)
    assert report.evaluations <= len(seen)


def test_solution_that_held_out_samples_reject_is_replaced_by_one_near_it(data):
    expected = host_outputs(network(), data)
    pairs = [(feed, number) for number, feed in enumerate(data)]

    def metric(outputs, items):
        numbers = [number for _, number in items]
        distances = np.linalg.norm(np.concatenate([arrays[0] for arrays in outputs]) - expected[numbers], axis=1)
        return -distances * np.where(np.array(numbers) % 5 == 4, 4, 1)

    report = nna.tune(network(), NPU, pairs, metric, max_drop=0.01, rules=NOT_ON_THE_CPU)
    with report.session() as session:
        scores = metric([session.run(None, feed) for feed in data], pairs)
    assert -np.mean(scores) <= 0.01
    assert report.gap <= 0.05
    assert any(unit.is_quantized for unit in report.units)


def test_relative_budget_is_a_share_of_the_baseline(data):
    report = nna.tune(network(), NPU, data, lambda outputs, items: 200.0, max_drop="0.5%")
    assert report.drop == 0
    assert "0.5" in report.budget


def test_evaluations_are_bounded(data):
    calls = []

    def metric(outputs, items):
        calls.append(len(items))
        return 1.0 if len(calls) < 4 else 0.0

    report = nna.tune(network(), NPU, data, metric, max_drop=0, max_evaluations=5)
    assert report.evaluations <= 5
    assert report.stopped


def test_time_limit_ends_the_search_with_the_best_so_far(data):
    report = nna.tune(network(planted=2), NPU, data, max_drop=30, seconds=0.01)
    assert report.stopped
    assert math.isinf(report.achieved) or report.achieved >= 30


def test_interrupt_ends_the_search_with_the_best_so_far(data):
    def interrupt(text):
        if "float16" in text and "w8a8" in text:
            raise KeyboardInterrupt

    report = nna.tune(network(), NPU, data, max_drop=30, progress=interrupt)
    assert "interrupted" in report.stopped
    assert report.achieved >= 30


def test_result_is_written_as_compiled_model_and_as_onnx(data, tmp_path, plain):
    for name in ("net.nna", "net.onnx"):
        report = nna.tune(network(), NPU, data, max_drop=30, out=tmp_path / name)
        assert str(tmp_path / name) in report.output
    with nna.InferenceSession(tmp_path / "net.nna") as session:
        got = np.concatenate([session.run(None, feed)[0] for feed in data])
    assert sqnr(got, host_outputs(network(), data)) >= 30
    onnx.checker.check_model(onnx.load(tmp_path / "net.onnx"), full_check=True)
    plan = nna.Options(plan=tmp_path / "net.plan.json")
    again = nna.partition_report(tmp_path / "net.onnx", report.requests, {"x": (1, 3, 32, 32)}, plan)
    assert again.coverage.nodes == 1


def test_search_on_another_device_is_verified_on_the_named_one(data):
    report = nna.tune(network(planted=2), "openvino", data, max_drop=25, search_on=NPU)
    assert report.achieved >= 25
    assert set(report.devices) <= {"openvino", "openvino@float32", "openvino@bfloat16", "cpu"}
    with report.session() as session:
        got = np.concatenate([session.run(None, feed)[0] for feed in data])
    assert sqnr(got, host_outputs(network(planted=2), data)) >= 25


def test_interrupt_of_the_comparison_keeps_the_best(data):
    def interrupt(text):
        if "in turns" in text:
            import nnadapter.tuning.tune as module

            real = module.run_seconds

            def stop(*arguments):
                module.run_seconds = real
                raise KeyboardInterrupt

            module.run_seconds = stop

    report = nna.tune(network(), NPU, data, max_drop=30, progress=interrupt)
    assert report.achieved >= 30


def test_metric_runs_are_counted_and_bounded(data):
    for limit in (1, 3, 8):
        calls = []
        report = nna.tune(
            network(), NPU, data, lambda outputs, items, calls=calls: len(calls.append(1) or [1]), max_evaluations=limit
        )
        assert len(calls) <= report.evaluations <= limit


def test_time_is_of_one_sample(data):
    npu = ("fake_npu@float32", {**NPU[1], "peak_gflops": 1000.0})
    few, many = (nna.tune(network(), npu, samples, max_drop=90, rules=NOT_ON_THE_CPU) for samples in (data[:1], data))
    assert few.devices == many.devices == ("fake_npu@float32",)
    with few.session() as session:
        session.run(None, data[0])
        (segment,) = session.report().segments
    for report in (few, many):
        assert report.time == pytest.approx(segment.facts["simulated_us"] / 1e6, rel=0.01)


class TestRules:
    def test_node_pinned_to_a_precision_keeps_it(self, data):
        rules = nna.Rules(pins=(nna.Pin(precision="float32", name="*"),))
        report = nna.tune(network(), NPU, data, max_drop=10, rules=rules)
        assert {unit.precision for unit in report.units} == {"float32"}

    def test_banned_precision_is_not_used(self, data):
        rules = nna.Rules(bans=(nna.Ban(precision="w8a8", op_type="Conv"),))
        report = nna.tune(network(), NPU, data, max_drop=10, rules=rules)
        assert not any(unit.precision.startswith("w8a8") for unit in report.units)

    def test_budget_that_rules_make_impossible(self, data):
        rules = nna.Rules(pins=(nna.Pin(precision="w8a8", op_type="Conv"),))
        for limit in (None, 6):
            with pytest.raises(errors.BudgetError, match="the best of .* reached|none ran"):
                nna.tune(network(planted=2), NPU, data, max_drop=60, rules=rules, max_evaluations=limit)

    def test_rule_without_nodes_is_refused(self, data):
        rules = nna.Rules(bans=(nna.Ban(precision="w8a8", op_type="Softmax"),))
        with pytest.raises(errors.RulesError, match="selects nothing"):
            nna.tune(network(), NPU, data, rules=rules)


class TestBadUse:
    @pytest.mark.parametrize(
        ("metric", "text"),
        [
            (lambda outputs, items: 1 / 0, "raised ZeroDivisionError"),
            (lambda outputs, items: float("nan"), "returned nan"),
            (lambda outputs, items: "good", "raised (ValueError|TypeError)"),
            (lambda outputs, items: None, "raised TypeError"),
            (lambda outputs, items: [1.0], "for 10 samples"),
        ],
    )
    def test_broken_metric(self, data, metric, text, tmp_path):
        with pytest.raises(errors.MetricError, match=text):
            nna.tune(network(), NPU, data, metric, out=tmp_path / "out.nna")
        assert not (tmp_path / "out.nna").exists()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"max_drop": -1}, "max_drop must be"),
            ({"max_drop": "much"}, "max_drop must be"),
            ({"max_drop": "1%"}, "there is no metric"),
            ({"max_evaluations": 0}, "max_evaluations must be"),
            ({"seconds": 0}, "seconds must be"),
            ({"metric": 3}, "metric must be a function"),
        ],
    )
    def test_invalid_arguments(self, data, arguments, text):
        with pytest.raises(errors.InvalidOptionError, match=text):
            nna.tune(network(), NPU, data, **arguments)

    def test_no_data(self):
        with pytest.raises(errors.InvalidOptionError, match="needs sample inputs"):
            nna.tune(network(), NPU)
        with pytest.raises(errors.CalibrationDataError, match="no sample"):
            nna.tune(network(), NPU, [])

    def test_unknown_device(self, data):
        with pytest.raises(errors.DeviceNotFoundError):
            nna.tune(network(), "fake_tpu", data)
        with pytest.raises(errors.InvalidOptionError, match="w8a8"):
            nna.tune(network(), "fake_npu@w8a8", data)
