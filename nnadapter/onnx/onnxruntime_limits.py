"""Opsets and IR versions of the installed ONNX Runtime, and models lowered to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nnadapter.errors import InvalidModelError
from nnadapter.process.resources import memoize
from partition.graph import Unsupported

if TYPE_CHECKING:
    import onnx


CPU_PROVIDER = "CPUExecutionProvider"
QUIET = 4
"""Log severity: fatal errors only; other errors become exceptions."""


@memoize(1)
def onnxruntime_limits() -> tuple[Mapping[str, int], int]:
    """Return the newest opset by domain and the newest IR version that ONNX Runtime loads, found by trial."""
    import onnx
    from onnx import defs

    learning = [schema.since_version for schema in defs.get_all_schemas() if schema.domain == "ai.onnx.ml"]
    domains = {"": defs.onnx_opset_version(), "ai.onnx.ml": max(learning, default=1)}
    opsets = {
        domain: next((version for version in range(newest, 0, -1) if _loads({domain: version}, 8)), 1)
        for domain, newest in domains.items()
    }
    ir_version = next(
        (version for version in range(onnx.IR_VERSION, 3, -1) if _loads({"": min(13, opsets[""])}, version)), 4
    )
    return opsets, ir_version


def _loads(opsets: Mapping[str, int], ir_version: int) -> bool:
    from onnx import helper
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    from nnadapter.process.real_onnxruntime import onnxruntime

    value = helper.make_tensor_value_info("x", 1, [1])
    graph = helper.make_graph([], "probe", [value], [value])
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": 13, **opsets}.items()]
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=imports)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU_PROVIDER])
    except native.Fail:
        return False
    return True


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Lower the opsets of `model` to the newest of the installed ONNX Runtime. Raises InvalidModelError."""
    from nnadapter.onnx.normal_form import check_versions, stamp_down
    from nnadapter.process.real_onnxruntime import onnxruntime

    opsets, ir_version = onnxruntime_limits()
    check_versions(model)
    stamped = stamp_down(model, opsets, ir_version)
    if isinstance(stamped, Unsupported):
        raise InvalidModelError(
            f"ONNX Runtime {onnxruntime.__version__} knows opsets up to {opsets['']}, and the model needs a newer one: "
            f"{stamped.detail}; update onnxruntime or export with an older opset"
        )
    return stamped
