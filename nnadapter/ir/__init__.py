"""Adapter IR: typed operands and operations, the form of a model that drivers take.

Glossary of the IR:

    operand       one value of a model
    operation     one step of a model
    segment       part of a model that one device runs
    layout        order of an image's axes: NCHW or NHWC
    lifetime      origin of an operand's contents
    constant      operand with contents in the model
    temporary     operand that lives within a run
    schema        table of the operations
    role          input position of an operation
    attribute     named setting of an operation
    kind          type of an attribute
    variadic      one role for several operands
    fuse code     activation that an operation applies to its result
    origin        ONNX node that an operation implements
    text form     a model as lines that can be compared
    symbolic      computed from sizes of dynamic dimensions
    digest        hash of contents
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.ir.builder import ModelBuilder
    from nnadapter.ir.model import ABSENT, Model, Operation, submodel
    from nnadapter.ir.named_operation import NamedOperation
    from nnadapter.ir.operand import (
        Array,
        DataType,
        Layout,
        Lifetime,
        Operand,
        OperandType,
        Quantization,
        QuantizedType,
    )
    from nnadapter.ir.operations import SCHEMAS, schema_of
    from nnadapter.ir.schema import (
        Attribute,
        AttributeKind,
        Attributes,
        AttributeValue,
        Example,
        OperationDoc,
        OperationSchema,
        Role,
    )
    from nnadapter.ir.symbolic_numbers import SymbolicNumber, substitute_sizes
    from nnadapter.ir.text import digest, to_text
    from nnadapter.ir.verification import check_attributes, check_inputs, verify


__all__ = [
    "ABSENT",
    "SCHEMAS",
    "Array",
    "Attribute",
    "AttributeKind",
    "AttributeValue",
    "Attributes",
    "DataType",
    "Example",
    "Layout",
    "Lifetime",
    "Model",
    "ModelBuilder",
    "NamedOperation",
    "Operand",
    "OperandType",
    "Operation",
    "OperationDoc",
    "OperationSchema",
    "Quantization",
    "QuantizedType",
    "Role",
    "SymbolicNumber",
    "check_attributes",
    "check_inputs",
    "digest",
    "schema_of",
    "submodel",
    "substitute_sizes",
    "to_text",
    "verify",
]

__getattr__ = lazily(
    __name__,
    {
        ".builder": "ModelBuilder",
        ".model": "ABSENT Model Operation submodel",
        ".named_operation": "NamedOperation",
        ".operand": "Array DataType Layout Lifetime Operand OperandType Quantization QuantizedType",
        ".operations": "SCHEMAS schema_of",
        ".schema": "Attribute AttributeKind AttributeValue Attributes Example OperationDoc OperationSchema Role",
        ".symbolic_numbers": "SymbolicNumber substitute_sizes",
        ".text": "digest to_text",
        ".verification": "check_attributes check_inputs verify",
    },
)
