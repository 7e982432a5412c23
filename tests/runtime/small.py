"""A small model, its feed, and contexts of a faulty driver."""

from __future__ import annotations

import numpy as np

import nnadapter as nna
from nnadapter.ir import DataType, OperandType

X = np.random.default_rng(5).standard_normal((2, 3)).astype(np.float32)
Y = np.random.default_rng(6).standard_normal((2, 3)).astype(np.float32)


def small():
    """Return the model total = x + y, result = exp(relu(total))."""
    builder = nna.ModelBuilder()
    x, y = (builder.add_input(name, OperandType(DataType.FLOAT32, (2, 3))) for name in "xy")
    (total,) = builder.add_operation("ADD", (x, y), outputs=["total"])
    (positive,) = builder.add_operation("RELU", (total,), outputs=["positive"])
    return builder.finish([*builder.add_operation("EXP", (positive,), outputs=["result"]), total])


def trial(fault="none", **options):
    return nna.Context(nna.Device.acquire("trial"), fault=fault, **options)
