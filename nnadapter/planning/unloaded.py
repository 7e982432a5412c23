"""A model that ONNX Runtime does not load: what the last resort takes of it, or who would have to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.drivers.onnxruntime.driver import refused_nodes
from nnadapter.drivers.onnxruntime.sessions import check_session_options
from nnadapter.drivers.registry import devices_of_distribution
from nnadapter.errors import InvalidModelError
from nnadapter.onnx.external_converters import provider_text
from nnadapter.planning.setting import Setting
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime


def left_to_last_resort(
    failed: InvalidModelError,
    model: onnx.ModelProto,
    setting: Setting,
    session_options: onnxruntime.SessionOptions | None,
) -> dict[int, Unsupported] | InvalidModelError:
    """Return the nodes (positions) that ONNX Runtime refuses and the last resort takes, and why; else what to raise.

    That says who brings, or would have to bring, an op that ONNX Runtime does not know.

    Args:
        failed: what ONNX Runtime said.
        model: the model.
        setting: opened devices, of which the CPU comes first.
        session_options: ONNX Runtime's own.

    Raises:
        InvalidOptionError: ONNX Runtime loads no model with the session options.
    """
    if session_options is not None:
        check_session_options(session_options)
    refused = refused_nodes(model, session_options)
    verdicts = setting.last_resort.context.supported(model) if refused else ()
    if refused and all(verdicts[position] for position in refused):
        return refused
    ops = dict.fromkeys((node.domain, node.op_type) for node in model.graph.node if node.domain)
    advice = provider_text(ops, devices_of_distribution)
    if not advice:
        verdicts = setting.devices[0].context.supported(model)
        unknown = next((node for node, verdict in zip(model.graph.node, verdicts, strict=True) if not verdict), None)
        if unknown is not None and unknown.domain:
            op = f"{unknown.domain}::{unknown.op_type}"
            advice = f"install the package that brings {op}, and name a device that takes it"
    return InvalidModelError(f"{failed}; {advice}") if advice else failed
