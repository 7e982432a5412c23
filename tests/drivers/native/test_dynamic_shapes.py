from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import DimensionBounds, DynamicShapes
from nnadapter.drivers.native import (
    CLASSES,
    OPEN,
    STRUCTURES,
    Functions,
    Holder,
    NativeDriver,
    NumberedSizes,
    build,
    make,
    read_pointers,
)
from nnadapter.errors import CancelledError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.c_compiler import compile_acme, needs_compiler
from tests.models import parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
PRODUCTS = f"""{HEAD} g (float[n, m] x, float[m, k] w, float[k] b) => (float[n, k] y, float[k, n] z) {{
    a = MatMul (x, w) c = Add (a, b) y = Relu (c) s = Sin (y) t = Transpose (s) z = Relu (t)
}}"""
SIZES = [(2, 3, 4), (5, 3, 2), (7, 2, 9), (2, 3, 4), (3, 8, 5), (6, 6, 6)]


def feed_of(n, m, k):
    generator = np.random.default_rng(n * 100 + m * 10 + k)
    shapes = {"x": (n, m), "w": (m, k), "b": (k,)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def agree(session, model, feed):
    for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert not session.provenance.fell_back


def test_one_program_computes_at_all_sizes(acme):
    model = parse(PRODUCTS)
    with nna.InferenceSession(model, devices=acme) as session:
        for sizes in SIZES:
            agree(session, model, feed_of(*sizes))
        assert "acme_c" in {step.device for step in session.provenance.steps}
        assert session.report().plans.compiled == 2


def test_many_threads_with_different_sizes(acme):
    model = parse(PRODUCTS)
    wrong = []
    with nna.InferenceSession(model, devices=acme) as session:

        def work(first):
            try:
                for offset in range(20):
                    agree(session, model, feed_of(*SIZES[(first + offset) % len(SIZES)]))
            except BaseException as error:  # noqa: BLE001  checked below
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_run_with_dynamic_shapes_has_a_deadline(acme):
    model = parse(PRODUCTS)
    with nna.InferenceSession(model, devices=acme, options=nna.Options(deadline_s=30)) as session:
        for sizes in SIZES:
            agree(session, model, feed_of(*sizes))
    with nna.InferenceSession(model, devices=acme, options=nna.Options(deadline_s=1e-9)) as session:
        for sizes in SIZES[:2]:
            with pytest.raises(CancelledError):
                session.run(None, feed_of(*sizes))


def opened(size=5):
    """Return a model with a symbolic size, and its trace."""
    trace = SymbolicTrace()
    size = trace.variable(size)
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3, size)))
    (y,) = builder.add_operation("RESHAPE", (x,), {"shape": (size, 3)}, outputs=["y"])
    return builder.finish([y]), trace


def test_dimensions_refer_to_numbered_sizes():
    model, trace = opened()
    holder = Holder()
    sizes = NumberedSizes(model)
    c_model = CLASSES["Model"].from_address(build(model, holder, sizes))
    assert c_model.size_count == len(sizes) == 1
    x, y = (CLASSES["Operand"].from_address(pointer) for pointer in read_pointers(c_model.operands, 2))
    assert list((ctypes.c_int64 * 2).from_address(x.dimensions)) == [3, OPEN]
    assert list((ctypes.c_int32 * 2).from_address(x.sizes)) == [-1, 0]
    assert list((ctypes.c_int32 * 2).from_address(y.sizes)) == [0, -1]
    assert x.bytes == y.bytes == 0
    operation = CLASSES["Operation"].from_address(read_pointers(c_model.operations, 1)[0])
    attributes = [
        CLASSES["Attribute"].from_address(pointer)
        for pointer in read_pointers(operation.attributes, operation.attribute_count)
    ]
    (shape,) = [attribute for attribute in attributes if attribute.name == b"shape"]
    assert list((ctypes.c_int64 * 2).from_address(shape.value.integers)) == [OPEN, 3]
    assert list((ctypes.c_int32 * 2).from_address(shape.sizes)) == [0, -1]
    assert list(sizes.c_array(sizes.of(trace.replay([7])))) == [7]


def test_equal_sizes_share_a_number():
    trace = SymbolicTrace()
    first, second, third = (trace.variable(size) for size in (4, 4, 4))
    builder = ModelBuilder()
    x, y, z = (
        builder.add_input(name, OperandType(DataType.FLOAT32, (2, size_of_input)))
        for name, size_of_input in (("x", first), ("y", second), ("z", third))
    )
    model = builder.finish(builder.add_operation("ADD", (x, y)) + builder.add_operation("NEG", (z,)))
    sizes = NumberedSizes(model)
    assert len(sizes) == 2 and sizes.positions_of((first, second, third)) == [0, 0, 1]
    assert bool(second == third) and sizes.positions_of((first, third)) == [0, 1], "what is found later counts no more"
    assert sizes.of(trace.replay([7, 7, 7])) == [7, 7] and trace.replay([7, 6, 7]) is None


def test_static_model_has_no_sizes(acme):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3, 2)))
    holder = Holder()
    model = CLASSES["Model"].from_address(build(builder.finish(builder.add_operation("RELU", (x,))), holder))
    operands = [CLASSES["Operand"].from_address(pointer) for pointer in read_pointers(model.operands, 2)]
    assert not model.size_count and not any(operand.sizes for operand in operands)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a function that opens the example driver, compiled with flags."""

    def opened(*flags):
        return NativeDriver("acme_c", compile_acme(tmp_path_factory.mktemp("acme"), *flags)).open("")

    return opened


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("flags", "sizes", "bounds"),
    [
        ((), DynamicShapes.ANY, None),
        (("-DACME_OPEN_SIZES=NNADAPTER_SHAPES_STATIC",), DynamicShapes.NONE, None),
        (
            ("-DACME_OPEN_SIZES=NNADAPTER_SHAPES_BOUNDED", "-DACME_LARGEST_SIZE=8"),
            DynamicShapes.BOUNDED,
            DimensionBounds(largest=8),
        ),
    ],
)
def test_capability_has_dynamic_shapes_and_bounds(built, flags, sizes, bounds):
    capability = built(*flags).capability
    assert (capability.dynamic_shapes, capability.dimension_bounds) == (sizes, bounds)


def test_driver_does_not_write_past_an_older_capability(device):
    functions: Functions = device._functions
    capability = make("Capability", threading=3)
    older = CLASSES["Capability"].dynamic_shapes.offset
    capability.size = older
    functions.call("describe_device", device._handle, ctypes.addressof(capability))
    assert capability.dynamic_shapes == 0 and capability.memory_bytes
    assert "dynamic_shapes" in dict(STRUCTURES["Capability"])
