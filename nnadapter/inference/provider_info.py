"""Facts and settings of ONNX Runtime's providers, answered for a session over devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.providers import provider_of_device
from nnadapter.errors import FallbackWarning, InvalidOptionError

if TYPE_CHECKING:
    from nnadapter.running.engine import Engine

_RECORDS = "session.record_ep_graph_assignment_info"


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
