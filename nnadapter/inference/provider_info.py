"""Facts and settings of ONNX Runtime's providers, answered for a session over devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.onnxruntime.sessions import check_session_options, session_entry, whole_model_entries
from nnadapter.drivers.providers import provider_of_device
from nnadapter.errors import DriverWarning, FallbackWarning, InvalidOptionError

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.engine import Engine
    from nnadapter.options import Options

_FORBIDS_CPU = "session.disable_cpu_ep_fallback"
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


def with_session_options(options: Options, session_options: onnxruntime.SessionOptions) -> Options:
    """Return the options of a session over devices with what its session options forbid; warn of what is ignored.

    Raises:
        InvalidOptionError: ONNX Runtime opens no session with the session options, so no CPU segment.
        CancelledError: their load cancellation flag is set.
    """
    _warn_of_ignored(session_options)
    if session_entry(session_options, _FORBIDS_CPU) == "1":
        return replace(options, fallback="forbid")
    check_session_options(session_options)
    return options


def _warn_of_ignored(options: onnxruntime.SessionOptions) -> None:
    """Warn about each of the session options that has no effect in a session over devices."""
    ignored: list[tuple[str, str]] = []
    if options.optimized_model_filepath:
        path = f"an optimized model (optimized_model_filepath {options.optimized_model_filepath!r})"
        ignored.append((path, "nothing is written there; write a compiled model with nnadapter.compile"))
    if options.has_providers():
        ignored.append(("providers or a selection policy for them", "name the devices in devices= or providers="))
    if options.use_deterministic_compute:
        ignored.append(("deterministic computation (use_deterministic_compute)", "open the session on 'cpu' alone"))
    for key, value in whole_model_entries(options).items():
        ignored.append((f"{key!r} = {value!r}", "leave the entry out, or open the session on 'cpu' alone"))
    for feature, advice in ignored:
        text = f"the session options ask for {feature}, which a session over devices ignores; {advice}"
        warnings.warn(text, DriverWarning, stacklevel=3)


def assignment_of(engine: Engine) -> Sequence[Any]:
    """Return the segments of a session's plan; of the CPU alone, ONNX Runtime's own sub-graphs.

    Raises:
        InvalidOptionError: the session options do not ask for it.
    """
    if session_entry(engine.session_options(), _RECORDS) != "1":
        raise InvalidOptionError(
            f'session configuration entry {_RECORDS!r} must be set to "1" to retrieve EP graph assignment '
            "information; add it to the session options"
        )
    session = getattr(engine, "session", None)
    if session is not None:
        return list(session.get_provider_graph_assignment_info())
    from nnadapter.reports.observed_report import build_report

    report = build_report(engine.observed())
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
    providers = ", ".join(str(result.get("ep", result)) for result in results)
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
