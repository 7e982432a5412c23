"""Adapter IR: typed operands and operations, the form of a model that drivers take.

Glossary:

    operand       one value of a model
    operation     one step of a model: a row of the schema table, with inputs, attributes and outputs
    model         operands, operations, and the lists of input and output operands
    segment       a part of a model that one device runs
    type          data type, dimensions, layout and quantization of an operand
    dimensions    sizes of an operand's axes
    layout        order of the axes of an image: NCHW or NHWC
    lifetime      where an operand's contents come from
    constant      an operand with contents stored in the model
    temporary     an operand that lives within one run
    schema        row of the table that defines an operation
    role          one input position of an operation
    attribute     a named setting of an operation
    kind          the type of an attribute
    variadic      repeatable: one role for one or more operands
    fuse code     an activation that an operation applies to its own output
    origin        an ONNX node that an operation implements
    pads          padding of an image: top, left, bottom, right
    group         a slice of the channels that a convolution processes separately
    scale         factor from quantized integers to reals
    zero point    the quantized integer that means 0
    text form     a model as lines that can be read and compared
    symbolic      computed from sizes of dynamic dimensions
    digest        a hash of contents: equal only if they are
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
