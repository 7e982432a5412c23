"""Models for acme_c, compared with ONNX Runtime; also a program to run with sanitizers:

    python -m tests.drivers.native.acme_models

It needs `acme_c` among the devices.
"""

from __future__ import annotations

import gc
import struct
import threading
import warnings
from itertools import permutations

import numpy as np

import nnadapter as nna
from nnadapter.drivers import registry
from nnadapter.drivers.native import seal, unseal
from nnadapter.errors import IncompatibleProgramError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.models import parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
MODELS = {
    "conv": "(float[2,6,9,11] x, float[4,3,3,2] w, float[4] b) => (float[?,?,?,?] y) "
    "{ y = Conv<pads=[1,0,2,1], strides=[2,1], dilations=[1,2], group=2>(x, w, b) }",
    "depthwise": "(float[1,5,7,6] x, float[5,1,3,3] w) => (float[?,?,?,?] y) "
    "{ y = Conv<pads=[1,1,1,1], group=5>(x, w) }",
    "pointwise": "(float[1,3,1,1] x, float[8,3,1,1] w) => (float[?,?,?,?] y) { y = Conv(x, w) }",
    "far_pads": "(float[1,1,2,2] x, float[1,1,2,2] w) => (float[?,?,?,?] y) { y = Conv<pads=[3,3,3,3]>(x, w) }",
    "gemm": "(float[5,19] x, float[7,19] w, float[7] b) => (float[?,?] y) { y = Gemm<transB=1>(x, w, b) }",
    "matmul": "(float[3,1,4,5] x, float[2,5,6] w) => (float[?,?,?,?] y) { y = MatMul(x, w) }",
    "vectors": "(float[9] x, float[9] w) => (float y) { y = MatMul(x, w) }",
    "row": "(float[9] x, float[3,9,2] w) => (float[?,?] y) { y = MatMul(x, w) }",
    "column": "(float[3,2,9] x, float[9] w) => (float[?,?] y) { y = MatMul(x, w) }",
    "add": "(float[3,1,5] x, float[2,1] w) => (float[?,?,?] y) { y = Add(x, w) }",
    "scalars": "(float x, float w) => (float y) { a = Add(x, w) y = Relu(a) }",
    "empty": "(float[0,3] x, float[1,3] w) => (float[?,?] y) { a = Add(x, w) y = Relu(a) }",
    "max": "(float[1,2,9,8] x) => (float[?,?,?,?] y) "
    "{ y = MaxPool<kernel_shape=[3,2], strides=[2,3], pads=[1,0,2,0], dilations=[2,1], ceil_mode=1>(x) }",
    "average": "(float[1,2,9,8] x) => (float[?,?,?,?] y) "
    "{ y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,0,1]>(x) }",
    "average_all": "(float[1,2,9,8] x) => (float[?,?,?,?] y) "
    "{ y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(x) }",
    "mixed": "(float[1,3,16,16] x, float[4,3,3,3] w) => (float[?,?,?,?] y) "
    "{ a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Sin(b) d = Add(c, b) y = MaxPool<kernel_shape=[2,2]>(d) }",
    "twice": "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x) z = Add(y, y) }",
    "layers": "(float[3,2] x) => (float[?,?] y) "
    "<float[2,2] u = {1.0,-2.0,0.5,3.0}, float[2,2] v = {-1.0,2.0,4.0,0.25}, float[2,2] w = {0.5,0.5,-3.0,1.0}> "
    "{ a = MatMul(x, u) b = Relu(a) c = Sin(b) d = MatMul(c, v) e = Relu(d) f = Sin(e) g = MatMul(f, w) y = Relu(g) }",
}
OPTIONS = {"memory_bytes": 1 << 20, "switched_off": ()}
ORDERS = tuple(permutations(range(3)))
HEAD_BYTES = 40
"""Header of a serialized program: 8 bytes of magic; chip, format and release (uint32); size and checksum (uint64)."""


def model_of(name):
    return parse(f"{HEAD} {name} {MODELS[name]}".replace("?", "N"))


def feeds_of(model, seed=0):
    generator = np.random.default_rng(seed)
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(name, device="acme_c"):
    """Run a model in a session without fallback, and compare."""
    model = model_of(name)
    feeds = feeds_of(model)
    with nna.InferenceSession(model, devices=device) as session:
        results = session.run(None, feeds)
        assert session.report().coverage.nodes > 0.5 and not session.provenance.fell_back
        check_concurrent_runs(session, feeds, results)
    for result, expected in zip(results, run_whole(model, feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def dense(seed):
    """Return a model with constants drawn from `seed`, and a function with its results."""
    generator = np.random.default_rng(seed)
    weight, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (4,)))
    builder = ModelBuilder()
    x = builder.add_input(f"x{seed}", OperandType(DataType.FLOAT32, (2, 6)))
    (product,) = builder.add_operation("MAT_MUL", (x, builder.add_constant(f"w{seed}", weight)))
    (positive,) = builder.add_operation("RELU", (product,))
    model = builder.finish(builder.add_operation("ADD", (positive, builder.add_constant(f"b{seed}", bias))))
    return model, lambda array: np.maximum(array @ weight, 0) + bias


def check_bound(order, device="acme_c"):
    """Bind a program to other constants twice, destroy the three in an order, and compare until then.

    Each releases its model and constants.
    """
    context = registry.open_device(device).create_context(OPTIONS)
    x = np.random.default_rng(9).standard_normal((2, 6)).astype(np.float32)
    expected = [dense(seed)[1](x) for seed in range(3)]
    programs = {0: context.compile(dense(0)[0])}
    for seed in (1, 2):
        programs[seed] = context.clone_with_constants(programs[seed - 1], dense(seed)[0])
    executions = {seed: program.create_execution() for seed, program in programs.items()}
    for closed in order:
        for seed in executions:
            np.testing.assert_allclose(executions[seed].compute([x])[0], expected[seed], rtol=1e-5, atol=1e-6)
        executions.pop(closed).close()
        programs.pop(closed).close()
        gc.collect()
    context.close()


def inside(blob):
    """Return the boundary types and the driver's own bytes."""
    border, contents = unseal("acme_c", blob)
    return border, bytes(contents)


def checksum(contents):
    """Return the checksum of blob.c."""
    value = 0
    for (word,) in struct.iter_unpack("<Q", contents):
        value = (value ^ word) * 0x9E3779B97F4A7C15 % (1 << 64)
        value ^= value >> 29
    return value


def check_bounds(context):
    """Deserialize a program with every number changed and a valid checksum; return how many are refused."""
    border, contents = inside(context.compile(dense(0)[0]).serialize())
    head, body = contents[: HEAD_BYTES - 8], contents[HEAD_BYTES:]
    assert contents[HEAD_BYTES - 8 : HEAD_BYTES] == struct.pack("<Q", checksum(body))
    refused = 0
    for place in range(0, len(body), 4):
        for number in (0xFFFFFFFF, 0x7FFFFFFF, 100):
            changed = body[:place] + struct.pack("<I", number) + body[place + 4 :]
            try:  # a weight may be any number
                context.deserialize(
                    seal("acme_c", border, [head, struct.pack("<Q", checksum(changed)), changed])
                ).close()
            except IncompatibleProgramError:
                refused += 1
    return refused


def check_concurrent_runs(session, feeds, expected):
    wrong = []

    def run():
        for _ in range(3):
            pairs = zip(session.run(None, feeds), expected, strict=True)
            wrong.extend(1 for mine, other in pairs if not np.array_equal(mine, other))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def main():
    warnings.simplefilter("error")
    for name in MODELS:
        check(name)
    check("mixed", ("acme_c:1", {"switched_off": ["RELU"]}))
    for order in ORDERS:
        check_bound(order)
    check_bounds(registry.open_device("acme_c").create_context(OPTIONS))
    statistics = registry.open_device("acme_c").memory_statistics()
    assert statistics.used_bytes == 0 and statistics.peak_bytes > 0, statistics
    print(f"{len(MODELS)} models are right, no device memory is left behind")


if __name__ == "__main__":
    main()
