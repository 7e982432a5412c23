"""Driver in this process for the C interface that computes every operation by the IR's definition.

It has no memory or streams of its own. FAILS selects the failing phase: "compile" or "compute".
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

from nnadapter.drivers.native import DATA_TYPES, SIGNATURES, AttributeCode, Status, make, read, read_pointers
from nnadapter.ir import Model, ModelBuilder, OperandType, schema_of
from nnadapter.ir.definition import by_definition

_TYPES = {code: type_ for type_, code in DATA_TYPES.items()}
_NUMBERS = {AttributeCode.KIND_INTS: ctypes.c_int64, AttributeCode.KIND_FLOATS: ctypes.c_double}
_programs: dict[int, Model] = {}
_references: list[object] = []


def install() -> None:
    """Build the function table and export its address in DRIVER_TABLE."""
    functions = {name: SIGNATURES[name](function) for name, function in _FUNCTIONS.items()}
    addresses = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
    table = make("Driver", **addresses)
    _references.extend((functions, table))
    os.environ["DRIVER_TABLE"] = hex(ctypes.addressof(table))


def _give(number: int, where: int) -> int:
    ctypes.c_void_p.from_address(where).value = number
    return Status.OK


def _fail(error: int, sentence: str) -> int:
    ctypes.memmove(read("Error", error).message, sentence.encode() + b"\0", len(sentence) + 1)
    return Status.FAILED


def _attribute(address: int) -> tuple[str, object]:
    attribute = read("Attribute", address)
    kind, value = AttributeCode(attribute.kind), attribute.value
    if kind in _NUMBERS:
        where = value.integers if kind is AttributeCode.KIND_INTS else value.reals
        contents: object = tuple((_NUMBERS[kind] * attribute.count).from_address(where)) if attribute.count else ()
    elif kind is AttributeCode.KIND_BOOL:
        contents = bool(value.boolean)
    elif kind is AttributeCode.KIND_STRING:
        contents = value.string.decode()
    else:
        contents = value.integer if kind is AttributeCode.KIND_INT else value.real
    return attribute.name.decode(), contents


def _type_of(operand: object) -> OperandType:
    dimensions = tuple((ctypes.c_int64 * operand.rank).from_address(operand.dimensions)) if operand.rank else ()
    return OperandType(_TYPES[operand.data_type], dimensions)


def _model_of(address: int) -> Model:
    """Rebuild the model with `ModelBuilder`, which checks it; all attributes must be present."""
    model = read("Model", address)
    operands = [read("Operand", pointer) for pointer in read_pointers(model.operands, model.operand_count)]
    (only,) = (read("Operation", pointer) for pointer in read_pointers(model.operations, model.operation_count))
    attributes = dict(map(_attribute, read_pointers(only.attributes, only.attribute_count)))
    schema = schema_of(only.type.decode())
    assert set(attributes) == {attribute.name for attribute in schema.attributes}, (schema.type, attributes)
    assert schema.inputs[-1].variadic or only.input_count == len(schema.inputs), schema.type
    builder = ModelBuilder()
    inputs = (ctypes.c_int32 * only.input_count).from_address(only.inputs)
    added = [
        builder.add_input(operands[index].name.decode(), _type_of(operands[index])) for index in inputs if index >= 0
    ]
    results = builder.add_operation(schema.type, added, attributes)
    (result,) = (ctypes.c_int32 * only.output_count).from_address(only.outputs)
    assert _type_of(operands[result]) == builder.type_of(results[0]), schema.type
    return builder.finish(results)


def _supported(context: int, model: int, verdicts: int, error: int) -> int:
    (verdict,) = read_pointers(verdicts, 1)
    try:
        rebuilt = _model_of(model)
    except Exception as wrong:  # noqa: BLE001  an invalid model is a bug of the plug-in
        print(f"wrong model: {wrong!r}", file=sys.stderr)
        return _fail(error, repr(wrong)[:900])
    print("asked", rebuilt.operations[0].type, file=sys.stderr)
    ctypes.c_int32.from_address(verdict + 8).value = 1
    return Status.OK


def _compile(context: int, request: int, program: int, error: int) -> int:
    if os.environ.get("FAILS") == "compile":
        return _fail(error, "the chip has no room for it")
    _programs[len(_programs) + 1] = _model_of(read("CompileRequest", request).model)
    return _give(len(_programs), program)


def _array(tensor: object) -> np.ndarray:
    dimensions = tuple((ctypes.c_int64 * tensor.rank).from_address(tensor.dimensions)) if tensor.rank else ()
    memory = (ctypes.c_char * tensor.bytes).from_address(tensor.data)
    return np.frombuffer(memory, np.dtype(_TYPES[tensor.data_type])).reshape(dimensions)


def _compute(execution: int, request: int, error: int) -> int:
    if os.environ.get("FAILS") == "compute":
        return _fail(error, "the chip is too hot")
    call = read("ComputeRequest", request)
    inputs = [_array(read("Tensor", pointer)) for pointer in read_pointers(call.inputs, call.input_count)]
    outputs = [_array(read("Tensor", pointer)) for pointer in read_pointers(call.outputs, call.output_count)]
    for output, result in zip(outputs, by_definition(_programs[execution], inputs), strict=True):
        output[...] = result
    return Status.OK


_FUNCTIONS = {
    "open_device": lambda name, device, error: _give(1, device),
    "close_device": lambda device: None,
    "create_context": lambda device, count, options, context, error: _give(1, context),
    "destroy_context": lambda context: None,
    "supported": _supported,
    "compile": _compile,
    "destroy_program": lambda program: None,
    "create_execution": lambda program, execution, error: _give(program, execution),
    "destroy_execution": lambda execution: None,
    "compute": _compute,
}
