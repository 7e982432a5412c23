"""IOBinding of a session, and the session's methods about ONNX Runtime's providers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.onnxruntime.sessions import check_session_options, session_entry, whole_model_entries
from nnadapter.drivers.providers import provider_of_device
from nnadapter.drivers.selection import CPU
from nnadapter.engine.bindings import Binding, array_at
from nnadapter.engine.device_value import DeviceValue, device_named
from nnadapter.engine.provenance import Provenance
from nnadapter.errors import DriverWarning, FallbackWarning, InvalidOptionError
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.engine.engine import Engine
    from nnadapter.options import Options


class IOBinding:
    """Inputs and outputs of one session, bound by name.

    An output bound to a device, `bind_output("present", "fake_npu")`, stays there. Feeding it back with
    `bind_ortvalue_input` copies nothing.
    """

    def __init__(self, session: Any) -> None:
        engine: Engine = session._engine
        self._bound: Binding = engine.binding()

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        self._bound.bind_input(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue | DeviceValue) -> None:
        """Bind a device-resident value, or an OrtValue in host memory."""
        self._bound.bind_input(name, ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        self._bound.bind_input(name, array_at(name, device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Request an output on a device, or, with `shape` and `buffer_ptr`, at that address in host memory."""
        if buffer_ptr is None or shape is None:
            self._bound.bind_output(name, device_named(device_type, device_id))
        else:
            self._bound.bind_output(name, array_at(name, device_type, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: onnxruntime.OrtValue | DeviceValue) -> None:
        """Request an output in this value: an OrtValue is overwritten, a DeviceValue gets new contents."""
        self._bound.bind_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        pass

    def synchronize_outputs(self) -> None:
        pass

    def clear_binding_inputs(self) -> None:
        self._bound.clear_inputs()

    def clear_binding_outputs(self) -> None:
        self._bound.clear_outputs()

    def run(self, run_options: Any = None) -> Provenance:
        return self._bound.run(run_options)

    def copy_outputs_to_cpu(self) -> list[Any]:
        return self._bound.arrays()

    def get_outputs(self) -> list[Any]:
        """Return the results uncopied, as `nnadapter.DeviceValue` or OrtValue."""
        return [_as_value(result) for result in self._bound.results]

    def get_outputs_as_ortvaluevector(self) -> Any:
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        from nnadapter.drivers.onnxruntime.values import ort_value_of

        vector = OrtValueVector()
        for result in self._bound.results:
            value = ort_value_of(result.numpy() if isinstance(result, DeviceValue) else result)
            vector.push_back(value._get_c_value())
        return vector


def _as_value(result: Any) -> Any:
    if not hasattr(result, "dense_shape"):
        return result
    from nnadapter.drivers.onnxruntime.values import ort_value_of  # lazily: few models have sparse outputs

    return ort_value_of(result)


_FORBIDS_CPU = "session.disable_cpu_ep_fallback"
_RECORDS = "session.record_ep_graph_assignment_info"


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """Node of the model. Source: onnxruntime.OrtEpAssignedNode."""

    name: str
    op_type: str
    domain: str


@dataclass(frozen=True, slots=True)
class AssignedSubgraph:
    """Nodes that one provider runs together. Source: onnxruntime.OrtEpAssignedSubgraph."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        return list(self.nodes)


def with_session_options(options: Options, session_options: onnxruntime.SessionOptions) -> Options:
    """Apply session options to `Options`, and warn of ignored ones. Raises InvalidOptionError or CancelledError."""
    _warn_of_ignored(session_options)
    if session_entry(session_options, _FORBIDS_CPU) == "1":
        return replace(options, fallback="forbid")
    check_session_options(session_options)
    return options


def _warn_of_ignored(options: onnxruntime.SessionOptions) -> None:
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
        text = f"the session options ask for {feature}, which a session on devices ignores; {advice}"
        warnings.warn(text, DriverWarning, stacklevel=3)


def assignment_of(engine: Engine) -> Sequence[Any]:
    """Return a plan's segments, or ONNX Runtime's sub-graphs. Raises InvalidOptionError if they are not recorded."""
    if session_entry(engine.session_options(), _RECORDS) != "1":
        raise InvalidOptionError(
            f'session configuration entry {_RECORDS!r} must be set to "1" to retrieve EP graph assignment '
            "information; add it to the session options"
        )
    session = getattr(engine, "session", None)
    if session is not None:
        return list(session.get_provider_graph_assignment_info())
    from nnadapter.report.observed_report import build_report

    report = build_report(engine.observed())
    nodes = {node.name: AssignedNode(node.name, node.op_type, node.domain) for node in report.nodes}
    return [
        AssignedSubgraph(
            provider_of_device(segment.device), tuple(nodes[name] for name in segment.nodes if name in nodes)
        )
        for segment in report.segments
    ]


def refuse_tuning(results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool) -> None:
    """Refuse results of kernel tuning: no device uses them. Without `error_on_invalid`, only warn."""
    if not results:
        return
    providers = ", ".join(str(result.get("ep", result)) for result in results)
    text = f"no device of the session tunes kernels, got tuning results of {providers}; leave them out"
    if error_on_invalid:
        raise InvalidOptionError(text)
    warnings.warn(text, FallbackWarning, stacklevel=3)


def set_dynamic_options(engine: Engine, options: Mapping[str, str]) -> None:
    """Set dynamic options of ONNX Runtime's providers if ONNX Runtime alone runs the model; otherwise warn."""
    if not options:
        raise InvalidOptionError("dynamic options of providers are empty; name at least one")
    session = getattr(engine, "session", None)
    if session is not None:
        session.set_ep_dynamic_options(dict(options))
        return
    warnings.warn(
        (
            f"dynamic options of providers have no effect on devices: {', '.join(options)}; set options "
            "of devices when opening the session"
        ),
        FallbackWarning,
        stacklevel=3,
    )
