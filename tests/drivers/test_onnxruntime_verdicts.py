"""What the `cpu` device says of operators by their names, of those inside of nodes too."""

from __future__ import annotations

import onnx.parser
import pytest

from nnadapter.drivers.onnxruntime.driver import CpuContext
from partition.verdict import SUPPORTED, Reason, Supported

HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3, "acme" : 1, "own" : 1]>'
FUNCTION = '<domain: "own", opset_import: ["" : 17]> Twice (x) => (y) { y = Add (x, x) }'


def verdict_of(op_types):
    """On the last of some nodes, each written as what makes a value of one."""
    body = "".join(f" v{at} = {op_type} (x)" for at, op_type in enumerate(op_types))
    model = onnx.parser.parse_model(f"{HEAD} g (float[1] x) => (float[1] v0) {{ {body} }} {FUNCTION}")
    return CpuContext().supported(model)[-1]


def conditional(*inner):
    branches = (f"{name} = b () => (float[1] r) {{ r = {op_type} (x) }}" for name, op_type in inner)
    return f"If <{', '.join(branches)}>"


@pytest.mark.parametrize(
    ("op_types", "reason"),
    [
        (["Relu"], None),
        (["Nothing"], Reason.UNSUPPORTED_OPERATION),
        (["acme.Relu"], Reason.UNSUPPORTED_DOMAIN),
        (["own.Twice"], None),
        (["ai.onnx.ml.Binarizer"], None),
        (["Relu", "acme.Relu", "Relu"], None),
        (["acme.Nothing", "Nothing"], Reason.UNSUPPORTED_OPERATION),
        ([conditional(("then_branch", "Relu"), ("else_branch", "own.Twice"))], None),
        ([conditional(("then_branch", "Relu"), ("else_branch", "acme.Relu"))], Reason.UNSUPPORTED_DOMAIN),
        ([conditional(("then_branch", "Nothing"), ("else_branch", "acme.Relu"))], Reason.UNSUPPORTED_OPERATION),
        ([conditional(("then_branch", conditional(("then_branch", "Nothing"))))], Reason.UNSUPPORTED_OPERATION),
    ],
)
def test_the_first_refusal_counts(op_types, reason):
    found = verdict_of(op_types)
    assert found == SUPPORTED if reason is None else not isinstance(found, Supported) and found.reason is reason
