"""Models for cache tests, and the outcome of a cached session."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from tests.models import numbers, run_whole

X = numbers(1, 3, 12, 12)


def network(*, filters=3, seed=0, names=("x", "w", "v", "y"), order=(0, 1), scale=1.0, swapped=False, size=12):
    """Return a network of two convolutions that differ only in their filters."""
    x, first, second, y = names
    weights = [numbers(3, 3, filters, filters, seed=seed + each) * np.float32(scale) for each in range(2)]
    held = [numpy_helper.from_array(array, name) for array, name in zip(weights, (first, second), strict=True)]
    reads = (second, first) if swapped else (first, second)
    nodes = [
        helper.make_node("Conv", [x, reads[0]], [f"{x}.c"], name=f"{first}.conv"),
        helper.make_node("Relu", [f"{x}.c"], [f"{x}.r"]),
        helper.make_node("Conv", [f"{x}.r", reads[1]], [y], name=f"{second}.conv"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((x, [1, 3, size, size]), (y, None))
    ]
    graph = helper.make_graph(nodes, f"of_{x}", values[:1], values[1:], [held[each] for each in order])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def outcome(folder, model, device, feed=None, **options):
    """Return whether all device segments were cache hits, and the reasons for misses; check results against ONNX
    Runtime.
    """
    name = model.graph.input[0].name if isinstance(model, onnx.ModelProto) else "x"
    feed = {name: X} if feed is None else feed
    settings = nna.Options(cache_dir=folder, **options)
    with nna.InferenceSession(model, devices=device, options=settings) as session:
        got = session.run(None, feed)
        report = session.report()
    for one, other in zip(got, run_whole(model, feed), strict=True):
        tolerance = 5e-2 if "qnn" in str(device) else 1e-4
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    found = [segment.cache for segment in report.segments if segment.cache is not None]
    assert found, "no segment went by the cache"
    return all(each.hit for each in found), "; ".join(each.miss_reason for each in found)
