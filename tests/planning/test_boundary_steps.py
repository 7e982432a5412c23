from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import nnadapter as nna
from tests.running.test_device_resident_values import RETURNS, SHARED, X

SIMULATED = {"clock": "simulated", "switched_off": ["Sin"]}
IMAGES = RETURNS.replace("float[4, 8]", "float[1, 4, 8, 8]")


def steps_of(text, device="fake_npu", **options):
    report = nna.partition_report(parse_model(text), devices=(device, options))
    return report, [(step.kind, step.value, step.segment, step.target.target) for step in report.boundaries.operations]


def test_returning_value_is_not_transferred_again():
    report, steps = steps_of(RETURNS, **SIMULATED)
    assert steps == [
        ("transfer", "x", 0, "fake_npu"),
        ("transfer", "v", 1, "cpu"),
        ("transfer", "c", 2, "fake_npu"),
        ("transfer", "y", None, "cpu"),
    ]
    assert [(each.value, each.device, each.segments, each.nbytes) for each in report.boundaries.device_resident] == [
        ("v", "fake_npu", (0, 2), 128)
    ]


def test_value_read_by_several_segments_is_transferred_once():
    report, steps = steps_of(SHARED, **SIMULATED)
    assert [step for step in steps if step[1] == "mask"] == [("transfer", "mask", 0, "fake_npu")]
    assert ("mask", (0, 2, 4)) in [(each.value, each.segments) for each in report.boundaries.device_resident]


def test_host_memory_devices_need_no_boundary_steps():
    report, steps = steps_of(RETURNS, "null")
    assert steps == [] and report.boundaries.device_resident == ()


def test_only_images_are_reordered_at_boundaries():
    report, steps = steps_of(IMAGES, **SIMULATED)
    assert [step[:3] for step in steps if step[0] == "layout"] == [
        ("layout", "x", 0),
        ("layout", "v", 0),
        ("layout", "v", 2),
        ("layout", "c", 2),
        ("layout", "y", 2),
    ]
    (first,) = [step for step in report.boundaries.operations if step.kind == "layout" and step.value == "x"]
    assert (first.source.layout, first.target.layout, first.source.device_id) == ("NCHW", "NHWC", "0")


@pytest.mark.parametrize("text", [RETURNS, SHARED, IMAGES])
def test_boundary_steps_cost_as_much_as_predicted(text):
    report, _ = steps_of(text, **SIMULATED)
    priced = sum(segment.transfer_seconds for segment in report.segments)
    assert sum(step.seconds for step in report.boundaries.operations) == pytest.approx(priced)


def test_unknown_costs_have_no_price():
    report, _ = steps_of(RETURNS, switched_off=["Sin"])
    assert {step.seconds for step in report.boundaries.operations} == {None}


def test_report_lists_transfers_of_the_last_run():
    with nna.InferenceSession(parse_model(RETURNS), devices=("fake_npu", SIMULATED)) as session:
        assert session.report().transfers is None
        session.run(None, {"x": X})
        report = session.report()
    ran = report.transfers
    assert (ran.to_device, ran.bytes_to_device, ran.to_host, ran.bytes_to_host, ran.round_trips) == (2, 256, 2, 256, 0)
    text = " ".join(str(report).split())
    assert (
        "4 transfers of 512 B, predicted" in text
        and "1 value passes between segments of a device without transfer (128 B): v on fake_npu" in text
    )
    assert "0 returned to the device that produced them" in text
    assert "v on fake_npu" in report.to_markdown() and "v on fake_npu" in report.to_html()
    data = report.to_dict()
    assert data["boundaries"]["operations"][0]["target"] == {
        "target": "fake_npu",
        "device_id": "0",
        "layout": "",
        "dtype": "float32",
    }
    assert data["transfers"]["round_trips"] == 0


def test_policies_price_resident_values():
    """A round trip would cost more than the device saves."""
    text = RETURNS.replace("float[4, 8]", "float[256, 256]")
    slow = {**SIMULATED, "transfer_gbs": 0.5}
    report = nna.partition_report(parse_model(text), devices=("fake_npu", slow))
    one_way = 256 * 256 * 4 / 0.5e9
    transfers = sum(segment.transfer_seconds for segment in report.segments)
    assert 4 * one_way < transfers < 4.5 * one_way
    assert np.isfinite(report.cost.seconds)
