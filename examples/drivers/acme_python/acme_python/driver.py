"""The driver: judges operations, compiles segments, computes."""

from collections.abc import Sequence

import numpy as np

from acme_python.kernels import KERNELS
from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    Context,
    Device,
    DeviceInfo,
    Driver,
    Execution,
    ModelForm,
    OperationSupport,
    OptionValues,
    Program,
    Reason,
    Threading,
    Unsupported,
    Verdict,
)
from nnadapter.errors import DeviceNotFoundError
from nnadapter.ir import ABSENT, SCHEMAS, Array, DataType, Layout, Lifetime, Model, Operation, verify

FLOAT32 = frozenset({DataType.FLOAT32})
CAPABILITY = Capability(
    form=ModelForm.IR,
    threading=Threading.REENTRANT,
    operations=tuple(OperationSupport(type=name, dtypes=FLOAT32, ranks=SCHEMAS[name].ranks) for name in KERNELS),
    limits="float32, images as NCHW, nothing quantized",
)


class AcmeExecution(Execution):
    """Computes one operation after the other; holds nothing between runs, so many threads may share it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._steps = [(KERNELS[operation.type], operation) for operation in model.operations]
        constants = ((i, each) for i, each in enumerate(model.operands) if each.lifetime is Lifetime.CONSTANT)
        self._constants = {ABSENT: None, **{index: operand.value for index, operand in constants}}

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        values = {**self._constants, **dict(zip(self._model.inputs, inputs, strict=True))}
        for kernel, operation in self._steps:
            arguments = [values[index] for index in operation.inputs]
            values[operation.outputs[0]] = kernel(operation.attributes, *arguments)
        return [np.asarray(values[index], order="C") for index in self._model.outputs]


class AcmeProgram(Program):
    def __init__(self, model: Model) -> None:
        self._model = model

    def create_execution(self) -> Execution:
        return AcmeExecution(self._model)


class AcmeContext(Context):
    def supported(self, model: Model) -> Sequence[Verdict]:
        return [self._judge(model, operation) for operation in model.operations]

    def compile(self, model: Model) -> Program:
        verify(model)
        return AcmeProgram(model)

    def _judge(self, model: Model, operation: Operation) -> Verdict:
        if operation.type not in KERNELS:
            return Unsupported(Reason.UNSUPPORTED_OPERATION, f"there is no kernel for {operation.type}")
        if operation.attributes.get("fuse_code", "none") != "none":
            return Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, f"{operation.type} with an activation, accepted: none")
        touched = (model.operands[index] for index in (*operation.inputs, *operation.outputs) if index != ABSENT)
        for name, type_ in ((operand.name, operand.type) for operand in touched):
            if type_.dtype is not DataType.FLOAT32 or type_.quantization is not None or type_.layout is Layout.NHWC:
                return Unsupported(Reason.UNSUPPORTED_DTYPE, f"{name!r} is {type_}, accepted: float32, as NCHW")
        return SUPPORTED


class AcmeDevice(Device):
    @property
    def capability(self) -> Capability:
        return CAPABILITY

    def create_context(self, options: OptionValues) -> Context:
        return AcmeContext()


class AcmeDriver(Driver):
    """What the entry point names."""

    def devices(self) -> Sequence[DeviceInfo]:
        return (DeviceInfo(name="acme_python", vendor="Acme", sub_type="A1", version="1.0.0"),)

    def open(self, device_id: str) -> Device:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"there is one device, acme_python:0, got acme_python:{device_id}")
        return AcmeDevice()
