"""Facts and settings of ONNX Runtime's providers, answered for a session over devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.providers import provider_of_device
from nnadapter.errors import DriverWarning, FallbackWarning, InvalidOptionError

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.running.engine import Engine

_RECORDS = "session.record_ep_graph_assignment_info"
_OF_WHOLE_MODELS = (
    "ep.context_enable",
    "ep.context_file_path",
    "session.collect_node_memory_stats_to_file",
    "session.compile_only",
    "session.disable_cpu_ep_fallback",
    "session.disable_model_compile",
    "session.fail_on_suboptimal_compiled_model",
    "session.layer_assignment_settings",
    "session.load_model_format",
    "session.max_shape_override",
    "session.name_based_layer_assignment",
    "session.node_partition_config_file",
    "session.resource_cuda_partitioning_settings",
    "session.save_external_prepacked_constant_initializers",
    "session.save_model_format",
    "session.strict_shape_type_inference",
)
"""Configuration entries that need a session of the whole model; others concern the nodes of a CPU segment.

Source: onnxruntime_session_options_config_keys.h.
"""


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """One node of the model. Source: onnxruntime.OrtEpAssignedNode."""

    name: str
    op_type: str
    domain: str


@dataclass(frozen=True, slots=True)
class AssignedSubgraph:
    """The nodes that one provider runs together. Source: onnxruntime.OrtEpAssignedSubgraph."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def warn_of_ignored(options: onnxruntime.SessionOptions) -> None:
    """Warn about each of the session options that has no effect in a session over devices."""
    ignored: list[tuple[str, str]] = []
    if options.optimized_model_filepath:
        path = f"an optimized model (optimized_model_filepath {options.optimized_model_filepath!r})"
        ignored.append((path, "nothing is written there; write a compiled model with nnadapter.compile"))
    if options.has_providers():
        ignored.append(("providers or a selection policy for them", "name the devices in devices= or providers="))
    for key in _OF_WHOLE_MODELS:
        try:
            value = options.get_session_config_entry(key)
        except RuntimeError:  # there is no such entry
            continue
        if value not in ("", "0"):
            ignored.append((f"{key!r} = {value!r}", "leave the entry out, or open the session on 'cpu' alone"))
    for what, advice in ignored:
        text = f"the session options ask for {what}, which a session over devices ignores; {advice}"
        warnings.warn(text, DriverWarning, stacklevel=2)


def assignment_of(engine: Engine) -> Sequence[Any]:
    """Return the segments of a session's plan; of the CPU alone, ONNX Runtime's own sub-graphs.

    Raises:
        InvalidOptionError: the session options do not ask for it.
    """
    try:
        is_recorded = engine.session_options().get_session_config_entry(_RECORDS) == "1"
    except RuntimeError:  # there is no such entry
        is_recorded = False
    if not is_recorded:
        raise InvalidOptionError(
            f'session configuration entry {_RECORDS!r} must be set to "1" to retrieve EP graph assignment '
            "information; add it to the session options"
        )
    session = getattr(engine, "session", None)
    if session is not None:
        return list(session.get_provider_graph_assignment_info())
    from nnadapter.reports.telling import report_told

    report = report_told(engine.observed())
    nodes = {node.name: AssignedNode(node.name, node.op_type, node.domain) for node in report.nodes}
    return [
        AssignedSubgraph(
            provider_of_device(segment.device), tuple(nodes[name] for name in segment.nodes if name in nodes)
        )
        for segment in report.segments
    ]


def refuse_tuning(results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool) -> None:
    """Refuse results of tuned kernels, or warn of them.

    Raises:
        InvalidOptionError: there are some, and invalid ones are an error.
    """
    if not results:
        return
    providers = ", ".join(str(each.get("ep", each)) for each in results)
    text = f"no device of the session tunes kernels, got tuning results of {providers}; leave them out"
    if error_on_invalid:
        raise InvalidOptionError(text)
    warnings.warn(text, FallbackWarning, stacklevel=3)


def set_dynamic_options(engine: Engine, options: Mapping[str, str]) -> None:
    """Set options of ONNX Runtime's providers, on the CPU alone; warn of them elsewhere.

    Raises:
        InvalidOptionError: there are no options.
    """
    if not options:
        raise InvalidOptionError("dynamic options of providers are empty; name at least one")
    session = getattr(engine, "session", None)
    if session is not None:
        session.set_ep_dynamic_options(dict(options))
        return
    warnings.warn(
        f"dynamic options of providers do not reach devices and have no effect: {', '.join(options)}; "
        "give options of a device when the session is opened",
        FallbackWarning,
        stacklevel=3,
    )
