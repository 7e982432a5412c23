"""Functions of one variable on quantized operands: 8 bits have 256 values, so a table of results says all."""

from __future__ import annotations

import numpy as np

from nnadapter.drivers.fake_npu.arithmetic import USUAL
from nnadapter.drivers.fake_npu.binding import bind
from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.kernels.quantized_elements import to_integers
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower
from nnadapter.drivers.fake_npu.lowerings.quantized import quantization_of
from nnadapter.drivers.fake_npu.scratch import with_scratch
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Operation
from nnadapter.ir.operand import Array, DataType, OperandType
from nnadapter.ir.operand_checks import integer_range

_VALUES = 256


def by_table(plain: Lower) -> Lower:
    """A look-up where input and result are quantized, else `plain`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        operands = emitter.model.operands
        source, result = operands[operation.inputs[0]].type, operands[operation.outputs[0]].type
        if source.quantization is None or result.quantization is None:
            plain(emitter, operation)
            return
        reals = _computed(plain, operation, _reals(source))
        inputs = (emitter.tensor(operation.inputs[0]), emitter.add_constant(_integers(reals, result)))
        (output,) = emitter.emit("look_up", inputs, (emitter.result_type(operation.outputs[0]),))
        emitter.assign(operation.outputs[0], output)

    return lower


def _reals(type_: OperandType) -> Array:
    """What every integer stands for, in the order of their bits."""
    quantization = quantization_of(type_)
    integers = np.arange(_VALUES, dtype=np.uint8).view(type_.dtype.value).astype(np.int32)
    reals: Array = (integers - quantization.zero_point[0]).astype(np.float32) * np.float32(quantization.scale[0])
    return reals


def _integers(reals: Array, type_: OperandType) -> Array:
    quantization = quantization_of(type_)
    integers = np.empty(reals.shape, type_.dtype.value)
    convert = to_integers(np.divide, *integer_range(type_.dtype))
    scale, zero_point = (np.array(values, np.float32) for values in (quantization.scale, quantization.zero_point))
    convert(reals, integers, scale, zero_point, np.empty_like(reals))
    return integers


def _computed(plain: Lower, operation: Operation, reals: Array) -> Array:
    """What the device's own kernels make of `reals`."""
    builder = ModelBuilder()
    input_operand = builder.add_input("x", OperandType(DataType.FLOAT32, reals.shape))
    model = builder.finish(builder.add_operation(operation.type, (input_operand,), operation.attributes))
    emitter = Emitter(model, USUAL)
    plain(emitter, model.operations[0])
    graph = with_scratch(emitter.finish())
    arrays = [np.empty(tensor.type.dimensions, tensor.type.dtype) for tensor in graph.tensors]
    arrays[graph.inputs[0]] = reals
    for instruction in graph.instructions:
        bind(instruction, arrays, instruction.parameters)()
    return arrays[graph.outputs[0]]
