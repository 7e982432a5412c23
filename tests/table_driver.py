"""A test driver from a table, with dynamic shapes. A different function negates more than ten rows."""

from __future__ import annotations

import numpy as np

from nnadapter.drivers import DynamicShapes, TableDriver, lowers

LOWERED: list[tuple[str, int]] = []
"""Lowered operations and their numbers of rows."""


class OpenTableDriver(TableDriver):
    dynamic_shapes = DynamicShapes.ANY

    @lowers("NEG")
    def neg(self, operation):
        rows = operation.input.type.dimensions[0]
        LOWERED.append(("NEG", rows))
        return np.negative if rows > 10 else lambda x: -x

    @lowers("RESHAPE")
    def reshape(self, operation):
        return lambda x: x.reshape(operation.shape)

    @lowers("ADD")
    def add(self, operation):
        return np.add
