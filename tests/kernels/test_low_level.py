"""Kernels without ONNX: models from the builder, serialized programs, kernels of a driver."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Context, Kernel
from nnadapter.drivers.kernel import KernelOrigin
from nnadapter.errors import DriverWarning, IncompatibleProgramError, InvalidModelError, NotDelegatedError
from nnadapter.ir import DataType, OperandType, to_text
from nnadapter.ir.operations import CUSTOM, CustomCall
from nnadapter.ir.protobuf import from_bytes, to_bytes
from nnadapter.kernels import kernel_table

TYPE = OperandType(DataType.FLOAT32, (2,))
TENSOR = np.array([[1, 2]], np.int16)


def model(op_type="Twice"):
    builder = nna.ModelBuilder()
    x = builder.add_input("x", TYPE)
    weight = builder.add_constant("w", np.array([5, 6], np.float32))
    (total,) = builder.add_operation("ADD", [x, weight])
    call = CustomCall(
        domain="d", op_type=op_type, since_version=1, attributes={"t": TENSOR}, present=(0, 2), outputs=(TYPE,)
    )
    (result,) = builder.add_operation(CUSTOM, [total, weight], call.to_attributes())
    return builder.finish([*builder.add_operation("MUL", [result, total]), result, x, weight])


def twice(x, middle, w, *, t):
    assert middle is None and np.array_equal(t, TENSOR) and t.dtype == np.int16
    return 2 * x + w


@pytest.fixture
def context():
    nna.register_kernel("fake_npu", "Twice", twice, domain="d")
    with nna.Device.acquire("fake_npu") as device, nna.Context(device) as opened:
        yield opened


def check(compilation):
    x, w = np.array([1, 2], np.float32), np.array([5, 6], np.float32)
    with nna.Execution(compilation) as execution:
        execution.set_inputs([x])
        got = execution.compute()
    product = 2 * (x + w) + w
    for result, other in zip(got, (product * (x + w), product, x, w), strict=True):
        np.testing.assert_array_equal(result, other)


def test_built_model(context):
    check(nna.Compilation(context, model()))


def test_a_model_in_files(context):
    contents, weights = to_bytes(model())
    check(nna.Compilation(context, from_bytes(contents, {"weights": weights})))
    assert "CUSTOM" in to_text(model())


def test_serialized_programs(context):
    blob = nna.Compilation(context, model()).serialize()
    check(nna.Compilation.deserialize(context, blob))
    program = nna.Compilation(context, model()).program()
    assert program.memory_bytes > 0


@pytest.mark.parametrize("at", [0, 9, 60, 120, -40, -1])
def test_damaged_bytes_are_refused(context, at):
    damaged = bytearray(context.driver_context.compile(model()).serialize())
    damaged[at] ^= 0xFF
    with pytest.raises(IncompatibleProgramError):
        context.driver_context.deserialize(bytes(damaged))


def test_deserializing_without_the_kernel(context):
    blob = nna.Compilation(context, model()).serialize()
    for kernel in list(context.driver_context.table.kernels):
        nna.unregister_kernel(kernel)
    nna.register_kernel("fake_npu", "Other", twice, domain="d")
    with (
        nna.Context(context.device) as other,
        pytest.raises(IncompatibleProgramError, match="a kernel that is not registered.*d::Twice"),
    ):
        nna.Compilation.deserialize(other, blob)


def test_op_without_a_kernel(context):
    with pytest.raises(NotDelegatedError, match="no kernel of device 'fake_npu' fits d::Thrice"):
        nna.Compilation(context, model("Thrice")).compile()


@pytest.mark.parametrize(
    "changed",
    [{"present": (0,)}, {"present": (2, 0)}, {"output_types": "float31[2]"}, {"attributes": "["}, {"op_type": ""}],
)
def test_inconsistent_custom_calls_are_refused(changed):
    call = CustomCall(domain="d", op_type="Twice", since_version=1, present=(0, 1), outputs=(TYPE,)).to_attributes()
    builder = nna.ModelBuilder()
    x = builder.add_input("x", TYPE)
    with pytest.raises(InvalidModelError, match="CUSTOM"):
        builder.add_operation(CUSTOM, [x, x], {**call, **changed})


class Offering(Context):
    def __init__(self, offered):
        self.offered = offered

    def kernels(self):
        return self.offered

    def supported(self, model):
        return []

    def compile(self, model):
        raise AssertionError


def test_kernels_of_drivers_and_users_are_combined():
    for device, name in (("npu", "mine"), ("npu:2", "second")):
        with pytest.warns(DriverWarning, match=f"'{device}', which no driver offers now; known: "):
            nna.register_kernel(device, "Erf", abs, name=name)
    offered = [Kernel(op_type="Erf", function=abs, name="theirs"), Kernel(op_type="Erf", function=abs, device="npu:2")]
    kernels = kernel_table("npu", Offering(offered)).kernels
    assert [(kernel.name, kernel.origin) for kernel in kernels] == [
        ("theirs", KernelOrigin.DRIVER),
        ("mine", KernelOrigin.USER),
    ]
    assert len(kernel_table("npu:2", Offering(offered)).kernels) == 4


@pytest.mark.parametrize("offered", [None, [3]])
def test_invalid_kernels_of_a_driver_are_a_warning(offered):
    with pytest.warns(DriverWarning, match="offers no kernels"):
        assert kernel_table("npu", Offering(offered)).kernels == ()


def test_unknown_device_name_has_a_suggestion():
    with pytest.warns(DriverWarning, match="'fake_npuu', which no driver offers now.*did you mean 'fake_npu'"):
        nna.register_kernel("fake_npuu", "Twice", twice)
