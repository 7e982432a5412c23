"""Models as ONNX Runtime's optimizers write them; the complete list is in benchmarks/models/optimized_models.py."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, group_query_model, step_feed
from benchmarks.models.optimized_models import optimized
from benchmarks.models.writer import Writer
from benchmarks.written_models import optimized_row
from nnadapter.engine import CompiledFile
from nnadapter.planning import is_full
from tests.models import numbers
from tests.watching import watched

SIZES = Sizes(layers=2, width=64, heads=4, kept=2, words=100, positions=64)


@pytest.mark.parametrize(
    "name", ["digits, extended", "BERT, extended", "encoder, for transformers", "generative, packed"]
)
def test_optimized_models_run_entirely_on_the_device(name):
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (model,) = optimized([name])
    finally:
        logging.disable(logging.NOTSET)
    row = optimized_row(model, "fake_npu")
    assert row["fused"]
    assert row["passes"], row


def with_attributes(model, **attributes):
    """Return the model with other attributes on its attention."""
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            kept = [each for each in node.attribute if each.name not in attributes]
            del node.attribute[:]
            node.attribute.extend([*kept, *(helper.make_attribute(*each) for each in attributes.items())])
    return model


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("attributes", "form"),
    [
        ({}, {}),
        ({"local_window_size": 4}, {}),
        ({"smooth_softmax": 1}, {}),
        ({}, {"bits": 4}),
        ({}, {"places": "stated"}),
        ({}, {"places": "turned apart"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_growing_cache_needs_few_plans(device, attributes, form):
    model = with_attributes(group_query_model(SIZES, **form), **attributes)
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with nna.InferenceSession(model, devices=[device, "cpu"], options=nna.Options(fallback="allow")) as session:
        for length, past in ((5, 0), (1, 5), (1, 6), (1, 7), (1, 20), (7, 0), (8, 0), (1, 8), (9, 0)):
            feed = step_feed(SIZES, length, past)
            if "places" in form:
                feed["places"] = np.arange(past, past + length)[None]
            for got, want in zip(session.run(None, feed), right.run(None, feed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        report = session.report()
    assert sum(segment.device == device for segment in report.segments) == 1
    heavy = ("GroupQueryAttention", "MatMul", "MatMulNBits", "Gather", "GatherBlockQuantized")
    assert {node.device for node in report.nodes if node.op_type in heavy and node.state == "runs"} == {device}
    assert report.plans.compiled <= 3, "one for prompts, one for all steps, one before it was known"


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_compiled_file_runs_with_a_growing_cache(tmp_path, device):
    model = group_query_model(SIZES)
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    nna.compile(model, tmp_path / "model.nna", devices=device, options=nna.Options(fallback="allow"))
    with nna.InferenceSession(tmp_path / "model.nna") as session:
        for length, past in ((5, 0), (1, 5), (1, 6), (4, 7), (1, 20)):
            feed = step_feed(SIZES, length, past)
            for got, want in zip(session.run(None, feed), right.run(None, feed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        for length, past in ((5, 0), (1, 5), (1, 6), (3, 7)):
            feed = step_feed(SIZES, length, 32)  # spare room in the cache, which inputs and outputs may share
            feed["mask"] = feed["mask"][:, : past + length]
            for name in cache_names(SIZES):
                feed[f"past.{name}"][:, :, past:] = 0
            for got, want in zip(session.run(None, feed), right.run(None, feed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    message = CompiledFile(str(tmp_path / "model.nna")).message
    of_device = [step for plan in message.plans for step in plan.steps if step.device == device]
    assert of_device
    assert device == "fake_npu" or all(step.HasField("program") for step in of_device)


def masked_model(layers=2, heads=4, depth=16, words=100):
    """Return a decoder as ONNX Runtime's optimizer writes it: a 2-D mask next to queries, keys and values."""
    width, writer = heads * depth, Writer(0)
    mask = writer.node("Cast", "attention_mask", to=onnx.TensorProto.INT32)
    x = writer.node("Gather", writer.weight(words, width), "ids")
    caches = [f"{layer}.{name}" for layer in range(layers) for name in ("key", "value")]
    for layer in range(layers):
        parts = [writer.node("MatMul", x, writer.weight(width, width)) for _ in range(3)]
        past, present = ([f"{when}.{layer}.{name}" for name in ("key", "value")] for when in ("past", "present"))
        made = [f"attended_{layer}", *present]
        read = [*parts, "", mask, "", *past]
        attributes = {"num_heads": heads, "unidirectional": 1, "domain": "com.microsoft"}
        writer.nodes.append(helper.make_node("MultiHeadAttention", read, made, f"attention_{layer}", **attributes))
        x = writer.node("Add", x, writer.node("MatMul", made[0], writer.weight(width, width)))
    writer.node("MatMul", x, writer.weight(width, words), output="logits")
    number, real = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("ids", number, ["batch", "length"]),
        helper.make_tensor_value_info("attention_mask", number, ["batch", "total"]),
        *(helper.make_tensor_value_info(f"past.{name}", real, ["batch", heads, "past", depth]) for name in caches),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", real, ["batch", "length", words]),
        *(helper.make_tensor_value_info(f"present.{name}", real, ["batch", heads, "total", depth]) for name in caches),
    ]
    graph = helper.make_graph(writer.nodes, "masked", inputs, outputs, writer.tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), caches


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_growing_cache_with_a_mask_needs_few_plans(device):
    """Sizes of mask and cache depend on each other, so their smallest values never occur together."""
    model, caches = masked_model()
    right = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with nna.InferenceSession(model, devices=[device, "cpu"], options=nna.Options(fallback="allow")) as session:
        for length, past in ((5, 0), (1, 5), (1, 6), (1, 7), (7, 0), (1, 7), (1, 8)):
            feed = {f"past.{name}": numbers(2, 4, past, 16, seed=1) for name in caches}
            feed |= {
                "ids": np.arange(2 * length).reshape(2, length),
                "attention_mask": np.ones((2, past + length), int),
            }
            feed["attention_mask"][1, 0] = 0
            with watched(is_full, lambda known, result: result) as asked:
                got_all = session.run(None, feed)
            for got, want in zip(got_all, right.run(None, feed), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert {node.device for node in session.report().nodes if node.op_type == "MatMul"} == {device}
        assert session.report().plans.compiled <= 3
    assert not asked, "the last run is between others"
