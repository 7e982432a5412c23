"""Rows of external operations: errors name the package."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from nnadapter.errors import DriverError, DriverWarning, InvalidModelError
from nnadapter.ir import (
    Attribute,
    AttributeKind,
    DataType,
    ModelBuilder,
    OperandType,
    OperationSchema,
    Role,
    schema_of,
)
from nnadapter.ir.definition import by_definition
from nnadapter.ir.operations import BROUGHT
from nnadapter.process import PlugIn

X = np.array([[1, 2], [3, 4]], np.float32)
ROW = OperationSchema(
    type="ZETA_TWICE",
    inputs=(Role("input", frozenset({DataType.FLOAT32})),),
    attributes=(Attribute("rate", AttributeKind.INT, 1),),
    infer=lambda types, attributes: (types[0],),
    flops=lambda types, results, attributes: 2 * results[0].size,
    definition=lambda x, rate: 2 * x,
    source="com.zeta Twice-1",
)


@pytest.fixture
def bring(monkeypatch):
    """Return a function that registers `ROW` with other fields as an external operation."""

    def brought(**fields):
        module = ModuleType("zeta_rows")
        module.ROW = replace(ROW, **fields)
        monkeypatch.setitem(sys.modules, "zeta_rows", module)
        plug_in = PlugIn("ZETA_TWICE", "zeta_rows:ROW", "zeta-ops 1.0")
        monkeypatch.setattr(BROUGHT, "_found", {"ZETA_TWICE": plug_in})
        monkeypatch.setattr(BROUGHT, "_loaded", {})

    return brought


def twice(rate=1):
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType("float32", X.shape))
    return builder.finish(builder.add_operation("ZETA_TWICE", [operand], {"rate": rate}, outputs=["y"]))


def test_shape_rule_results_are_normalized(bring):
    bring(infer=lambda types, attributes: [OperandType("float32", [np.int64(2), 2])])
    model = twice()
    type_ = model.operands[model.outputs[0]].type
    assert type(type_.dtype) is DataType and type_.dimensions == (2, 2) and type(type_.dimensions[0]) is int
    np.testing.assert_array_equal(by_definition(model, [X])[0], 2 * X)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ((), "expected an OperandType for each output"),
        ((OperandType("float32", ()),) * 2, "expected an OperandType for each output"),
        (3, "failed: TypeError"),
        (("float32",), "expected an OperandType"),
        ((OperandType("float31", (2,)),), "expected one of bool"),
        ((OperandType("float32", (-1, 2)),), "expected none below 0"),
        ((OperandType("float32", (None, 2)),), "expected integers"),
        ((OperandType("float32", 4),), "expected integers"),
    ],
)
def test_invalid_shape_rule_result_names_the_package(bring, results, message):
    bring(infer=lambda types, attributes: results)
    with pytest.raises(DriverError, match=f"ZETA_TWICE of zeta-ops 1.0 .*{message}"):
        twice()


@pytest.mark.parametrize("count", [-1, "many", float("nan"), None])
def test_invalid_flops_count_as_zero(bring, count):
    bring(flops=lambda types, results, attributes: count)
    model = twice()
    with pytest.warns(DriverWarning, match=r"FLOPs of ZETA_TWICE of zeta-ops 1.0"):
        assert schema_of("ZETA_TWICE").flops([model.operands[0].type], [model.operands[1].type], {}) == 0


def test_a_definition_writes_to_none_of_its_inputs(bring):
    def definition(x, rate):
        x *= 2
        return x

    bring(definition=definition)
    fed = X.copy()
    with pytest.raises(ValueError, match="read-only"):
        by_definition(twice(), [fed])
    np.testing.assert_array_equal(fed, X)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda x, rate: x.nothing, "failed: AttributeError"),
        (lambda x: x, "failed: TypeError"),
        (lambda x, rate: sys.exit(3), "failed: SystemExit"),
        (lambda x, rate: x[:1], r"returned results of shapes \[\(1, 2\)\], its shape rule infers \[\(2, 2\)\]"),
        (lambda x, rate: [x, x], "returned results of shapes"),
    ],
)
def test_failing_definition_names_the_package(bring, definition, message):
    bring(definition=definition)
    with pytest.raises(DriverError, match=f"definition of ZETA_TWICE of zeta-ops 1.0 {message}"):
        by_definition(twice(), [X])


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": ()},
        {"inputs": [Role("input")]},
        {"inputs": (Role("input", same_dtype_as="nobody"),)},
        {"inputs": (Role("many", variadic=True), Role("input"))},
        {"attributes": (Attribute("rate", AttributeKind.INT, "one"),)},
        {"attributes": (Attribute("rates", AttributeKind.INTS, [1]),)},
        {"attributes": ("rate",)},
        {"outputs": ()},
        {"outputs": "output"},
        {"ranks": (3, 1)},
        {"infer": None},
        {"flops": 12},
        {"definition": "x + x"},
    ],
)
def test_contradictory_row_is_rejected(bring, fields):
    bring(**fields)
    (name,) = fields
    with pytest.raises(InvalidModelError, match=f"of zeta-ops 1.0 .* is not used: .*has {name} .*, expected"):
        twice()
