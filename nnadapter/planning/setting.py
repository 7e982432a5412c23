"""Setting of a session: opened devices with contexts and bans, constraints, and the use of the last resort."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnadapter.drivers.boundary import has_of, open_context
from nnadapter.drivers.capability import Capability, DeviceRole, ModelForm, OptionValues, Precision
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Context, SegmentModel, is_streaming
from nnadapter.drivers.onnxruntime.driver import refused_nodes
from nnadapter.drivers.onnxruntime.sessions import check_session_options
from nnadapter.drivers.registry import device_of, devices_of_distribution
from nnadapter.drivers.selection import REFERENCE, DeviceRequest, Selected, check_options, select
from nnadapter.errors import InvalidModelError, InvalidOptionError
from nnadapter.kernels.context import with_kernels
from nnadapter.kernels.registry import KernelTable
from nnadapter.onnx.schemas import provider_text
from nnadapter.options import Fallback, Options, fallback_at
from nnadapter.planning.absent import Absent, Absents
from nnadapter.policies import POLICIES, Policy
from nnadapter.process.packages import require_extra
from nnadapter.process.resources import close_all, new_lock
from nnadapter.records import dataclass, field, replace
from nnadapter.rules.values import Rules
from nnadapter.traces.selection import trace_for
from nnadapter.traces.trace import PLAN, SESSION, SILENT, Trace
from partition.graph import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.costs.cost_model import DeviceCosts
    from nnadapter.planning.plan_files import MatchedPlan, PlanFile
    from nnadapter.rules.application import AppliedRules
    from nnadapter.store.bans import Ban, DeviceBans
    from nnadapter.store.context import CachedContext


DeviceByAtom = Mapping[int, str]
"""Atom -> device demanded for it, ignored if the device does not support it."""
NO_DEVICES: DeviceByAtom = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Constraints:
    """Session options that affect placement or fallback."""

    policy: Policy = POLICIES["priority"]
    fallback: Fallback = "warn"
    rules: Rules = field(default_factory=Rules)
    plan_file: PlanFile | None = None
    precision: str | None = None

    def fallback_at(self, stage: str) -> str:
        return fallback_at(self.fallback, stage)


def read_constraints(options: Options) -> Constraints:
    """Return the constraints of `options`.

    Raises:
        RulesError, PlanFileError: a file cannot be read, or rules contradict themselves.
    """
    plan_file, rules = None, Rules()
    if options.plan is not None:  # rare
        from nnadapter.planning.plan_files import read_plan

        plan_file = read_plan(options.plan)
    if options.rules is not None:
        from nnadapter.rules.reading import read_rules

        rules = read_rules(options.rules)
    return Constraints(POLICIES[options.policy], options.fallback, rules, plan_file, options.precision)


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """Devices for atoms at one set of shapes, demanded by rules, a plan file or a complete placement."""

    applied: AppliedRules | None = None
    bound: MatchedPlan | None = None
    complete_placement: DeviceByAtom | None = None

    @property
    def device_by_atom(self) -> DeviceByAtom:
        """Atom -> device in the complete placement, or in the plan file if there is no complete placement."""
        if self.complete_placement is not None:
            return self.complete_placement
        return NO_DEVICES if self.bound is None else self.bound.placement


class SessionBans:
    """Bans of one device in a session, stored in the cache folder if there is one. Thread-safe."""

    def __init__(self, device: str, options: OptionValues, folder: Path | None) -> None:
        self._device, self._options, self._folder = device, options, folder
        self._lock = new_lock()
        self._bans = None if folder is None else self._made()

    def __bool__(self) -> bool:
        return bool(self._bans)

    @property
    def all(self) -> tuple[Ban, ...]:
        return () if self._bans is None else self._bans.all

    @property
    def of_nodes(self) -> bool:
        """True if it bans nodes, not only oversized segments."""
        return self._bans is not None and self._bans.of_nodes

    def find(self, model: SegmentModel) -> Ban | None:
        return None if self._bans is None else self._bans.find(model)

    def add(
        self,
        model: SegmentModel,
        nodes: Sequence[str],
        reason: str,
        stage: str,
        *,
        is_size: bool = False,
        reproducer: str = "",
    ) -> Ban | None:
        with self._lock:
            if self._bans is None:
                self._bans = self._made()
        return self._bans.add(model, nodes, reason, stage, is_size=is_size, reproducer=reproducer)

    def _made(self) -> DeviceBans:
        from nnadapter.store.bans import DeviceBans

        return DeviceBans(self._device, self._options, self._folder)


@dataclass(frozen=True, eq=False)
class SessionDevice:
    """Opened device of a session."""

    name: str
    capability: Capability
    context: Context
    named: bool
    options: OptionValues = field(default_factory=dict)
    kernels: KernelTable = field(default_factory=KernelTable)
    has_memory: bool = False
    has_streams: bool = False
    has_raw_inputs: bool = False
    is_isolated: bool = False
    cache: CachedContext | None = None
    bans: SessionBans | None = None

    @property
    def accelerates(self) -> bool:
        """True if nodes on the device count as delegated."""
        return self.capability.role.accelerates

    @property
    def is_host(self) -> bool:
        return self.capability.role is DeviceRole.HOST

    @property
    def takes_ir(self) -> bool:
        return self.capability.form is ModelForm.IR

    def close(self) -> None:
        named_call(self.name, "close")(close_all, [self.context])

    @property
    def precision(self) -> Precision:
        return self.capability.precision_of(self.options)

    @property
    def lower_default(self) -> Precision | None:
        """Default precision of the device's own engine, if it is lower and the session computes in float32.

        None for a lane, because its name has the precision.
        """
        default = self.capability.default_precision
        is_lower = self.precision is Precision.FLOAT32 and default.is_floating and default is not Precision.FLOAT32
        return default if is_lower and self.name == device_of(self.name) else None

    @property
    def is_spare(self) -> bool:
        """True for a last resort not named by users. It is asked only about unplaceable nodes."""
        return self.capability.role is DeviceRole.LAST_RESORT and not self.named

    @property
    def display_name(self) -> str:
        return "the CPU" if self.is_host else repr(self.name)


@dataclass(frozen=True, eq=False)
class Setting:
    """Devices of a session in order of preference, last resort included, and the user's constraints."""

    devices: tuple[SessionDevice, ...]
    constraints: Constraints = field(default_factory=Constraints)
    trace: Trace = SILENT
    absent: tuple[Absent, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, SessionDevice]:
        return {device.name: device for device in self.devices}

    @cached_property
    def host(self) -> SessionDevice:
        return next(device for device in self.devices if device.is_host)

    @cached_property
    def last_resort(self) -> SessionDevice:
        return next(device for device in self.devices if device.capability.role is DeviceRole.LAST_RESORT)

    @cached_property
    def accelerators(self) -> frozenset[str]:
        return frozenset(device.name for device in self.devices if device.accelerates)

    @cached_property
    def domains(self) -> frozenset[str]:
        """Operator domains that an adapter IR device takes without conversion."""
        return frozenset(domain for device in self.devices if device.takes_ir for domain in device.capability.domains)

    @cached_property
    def owning(self) -> frozenset[str]:
        """Devices with memory of their own."""
        return frozenset(device.name for device in self.devices if device.has_memory)

    @cached_property
    def streaming(self) -> frozenset[str]:
        """Devices whose steps are enqueued if that saves a wait."""
        return frozenset(
            device.name
            for device in self.devices
            if is_streaming(device.capability.threading, has_memory=device.has_memory, has_streams=device.has_streams)
        )

    @cached_property
    def costs(self) -> Mapping[str, DeviceCosts]:
        from nnadapter.costs.cost_model import device_costs  # rarely needed

        return {
            device.name: replace(
                device_costs(
                    device.name, device.capability, device.context, device.options, isolated=device.is_isolated
                ),
                has_resident_values=device.has_memory,
            )
            for device in self.devices
        }

    def close(self) -> None:
        try:
            close_all(self.devices)
        finally:
            self.trace.finish()


@contextmanager
def closed_on_failure(devices: Sequence[SessionDevice | Context]) -> Iterator[None]:
    """Close the devices or contexts if the `with` block raises."""
    try:
        yield
    except BaseException:
        close_all(devices)
        raise


def open_setting(
    requests: DeviceRequest | Sequence[DeviceRequest],
    options: Options,
    session_options: onnxruntime.SessionOptions | None = None,
) -> Setting:
    """Open every requested device with a context, and read the constraints.

    A device that fails to open is omitted if `options.fallback` allows it for stage `load`.

    Raises:
        DeviceOpeningError, DriverError, OutOfMemoryError: a device failed, and `options.fallback` forbids omitting it.
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not fit, a placement policy lacks calibrated costs, or a trace cannot be
            written.
        RulesError, PlanFileError: a file cannot be read, or rules contradict themselves.
        MissingExtraError: the placement policy needs scipy.
    """
    opened: list[SessionDevice] = []
    absents = Absents(options.fallback_at("load"))
    trace = trace_for(options.trace, session_options)
    with closed_on_failure(opened):
        with trace.span(SESSION, PLAN, "find devices"):
            selects = partial(select, isolate=options.isolated, precision=options.precision)
            chosen = absents.select(requests, selects)
        for selected in chosen:
            device = absents.opened(selected.name, partial(_open, selected, session_options, trace))
            if device is not None:
                opened.append(_banning(_cached(device, options), options))
        if all(device.name != REFERENCE for device in opened):
            last_resort = Selected(REFERENCE, check_options(REFERENCE, {}), named=False)
            opened.append(_open(last_resort, session_options, SILENT))
        setting = Setting(tuple(opened), read_constraints(options), trace, tuple(absents))
        if setting.constraints.policy.weighs and setting.accelerators:
            require_extra("latency", f"policy {options.policy!r}")
        if setting.constraints.policy.promises:
            _check_costs(setting)
    return setting


def _open(selected: Selected, session_options: onnxruntime.SessionOptions | None, trace: Trace) -> SessionDevice:
    with trace.span(selected.name, PLAN, "open"):
        device, context = open_context(selected, trace)
    with closed_on_failure([context]):
        if session_options is not None:
            context = context.with_session_options(session_options)
        context, kernels = with_kernels(selected.name, device.capability, context)
        return SessionDevice(
            selected.name,
            device.capability,
            context,
            selected.named,
            selected.options,
            kernels,
            has_memory=has_of(selected.name, device, "has_memory"),
            has_streams=has_of(selected.name, device, "has_streams"),
            has_raw_inputs=has_of(selected.name, device, "has_raw_inputs"),
            is_isolated=selected.limits is not None,
        )


def _cached(device: SessionDevice, options: Options) -> SessionDevice:
    if options.cache_dir in (None, False) or not device.accelerates:
        return device
    from nnadapter.store.context import cached_context

    context = cached_context(device.context, device.name, device.capability.form, device.options, options)
    return replace(device, context=context, cache=context)


def _banning(device: SessionDevice, options: Options) -> SessionDevice:
    if not device.accelerates:
        return device
    folder = None
    if options.cache_dir not in (None, False):
        from nnadapter.store.folder import folder_of

        folder = folder_of(options).path
    return replace(device, bans=SessionBans(device.name, device.options, folder))


def _check_costs(setting: Setting) -> None:
    from nnadapter.costs.cost_model import Source

    trusted = (Source.CALIBRATED, Source.SIMULATED)
    costs = {device.name: setting.costs[device.name] for device in setting.devices if device.accelerates}
    if any(cost.source is Source.CALIBRATED for cost in costs.values()):
        costs[setting.host.name] = setting.costs[setting.host.name]  # a measured cost is not compared with a guess
    unknown = {name: cost for name, cost in costs.items() if cost.source not in trusted}
    if not unknown:
        return
    uncalibrated = ", ".join(f"{name!r} ({cost.source.value})" for name, cost in unknown.items())
    explanations = "".join(f"; {note}" for cost in unknown.values() for note in cost.missing_cost_notes)
    commands = " and ".join(f"`nnadapter calibrate {name}`" for name in unknown)
    needs = f"policy {setting.constraints.policy.name!r} needs calibrated costs, and has none of {uncalibrated}"
    raise InvalidOptionError(f"{needs}; run {commands}, or choose policy 'measured'{explanations}")


def left_to_last_resort(
    failed: InvalidModelError,
    model: onnx.ModelProto,
    setting: Setting,
    session_options: onnxruntime.SessionOptions | None,
) -> dict[int, Unsupported] | InvalidModelError:
    """Return the nodes that ONNX Runtime refuses, with reasons, or the error to raise if the last resort refuses one.

    The error names the package that provides the op, if it is known. The CPU must be the first device.

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
            advice = f"install the package that provides {op}, and name a device that takes it"
    return InvalidModelError(f"{failed}; {advice}") if advice else failed
