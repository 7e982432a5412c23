"""Small models for tests of the protobuf form, and functions that modify serialized models."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from nnadapter.ir import DataType, ModelBuilder, OperandType, to_text
from nnadapter.ir.protobuf import new, to_bytes

FLOAT = DataType.FLOAT32


def network():
    """Return softmax(rows of relu(convolution), times w, plus w); constants b and again are equal."""
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(FLOAT, (2, 3, 6, 6)))
    filter_ = builder.add_constant("filter", np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3) / 108)
    bias = builder.add_constant("bias", np.arange(4, dtype=np.float32))
    (y,) = builder.add_operation("CONV_2D", (x, filter_, bias), {"fuse_code": "relu"}, origins=("conv", "relu"))
    (y,) = builder.add_operation("MAX_POOL_2D", (y,), {"kernel_shape": (2, 2), "strides": (2, 2)})
    (y,) = builder.add_operation("RESHAPE", (y,), {"shape": (2, 16)})
    (y,) = builder.add_operation("CLIP", (y,), {"min": 0.0, "max": float("inf")})
    (y,) = builder.add_operation("SLICE", (y,), {"starts": (0,), "ends": (4,), "axes": (1,), "steps": (1,)})
    (y,) = builder.add_operation("ADD", (y, builder.add_constant("again", np.arange(4, dtype=np.float32))))
    (y,) = builder.add_operation("SOFTMAX", (y,), {"axis": 1}, outputs=("probabilities",))
    return builder.finish([y, x, y])


def only(type_, value=None, quantization=None):
    """Return a model of one operand, an input or a constant."""
    builder = ModelBuilder()
    operand = builder.add_input("only", type_) if value is None else builder.add_constant("only", value, quantization)
    return builder.finish([operand])


def assert_same(model, other):
    assert to_text(other) == to_text(model)
    assert [operand.lifetime for operand in other.operands] == [operand.lifetime for operand in model.operands]
    assert [list(operation.attributes) for operation in other.operations] == [
        list(operation.attributes) for operation in model.operations
    ]
    for before, after in zip(model.operands, other.operands, strict=True):
        if before.value is not None:
            assert after.value.dtype == before.value.dtype and not after.value.flags.writeable
            assert after.value.tobytes() == before.value.tobytes() and after.value.flags.c_contiguous


def opened(contents):
    whole, message = new("File"), new("Model")
    whole.ParseFromString(contents)
    message.ParseFromString(whole.model)
    return whole, message


def sealed(inner, **changes):
    """Wrap the bytes of a `Model` in a `File` with the right digest, unless `changes` replaces it."""
    whole = new("File")
    fields = {"format": "nnadapter model", "version": 1, "model": inner, "sha256": sha256(inner).digest(), **changes}
    for name, value in fields.items():
        setattr(whole, name, value)
    return whole.SerializeToString(deterministic=True)


def changed(model, change):
    """Return the bytes and data files of a model after `change` modified its message."""
    contents, data = to_bytes(model)
    _, message = opened(contents)
    change(message)
    return sealed(message.SerializeToString(deterministic=True)), {"weights": data}
