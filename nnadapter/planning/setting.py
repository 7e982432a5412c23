"""Setting of a session: opened devices, contexts and bans, rules and plan file; and models ONNX Runtime cannot load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnadapter.drivers.boundary import has_of, open_context
from nnadapter.drivers.capability import Capability, DeviceRole, ModelForm, OptionValues
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Context, SegmentModel, is_streaming
from nnadapter.drivers.onnxruntime.driver import refused_nodes
from nnadapter.drivers.onnxruntime.sessions import check_session_options
from nnadapter.drivers.registry import devices_of_distribution
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
    from nnadapter.store.context import Ban, CachedContext, DeviceBans


Kept = Mapping[int, str]
"""Atom -> the device that it stays on as long as that takes it."""
NOTHING_KEPT: Kept = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a person demands of every model of a session."""

    policy: Policy = POLICIES["priority"]
    fallback: Fallback = "warn"
    rules: Rules = field(default_factory=Rules)
    """Pins, bans and limits."""
    plan_file: PlanFile | None = None

    def fallback_at(self, stage: str) -> str:
        return fallback_at(self.fallback, stage)


def read_constraints(options: Options) -> Constraints:
    """Return what a person demands.

    Raises:
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
    """
    plan_file, rules = None, Rules()
    if options.plan is not None:  # most people write neither
        from nnadapter.planning.plan_files import read_plan

        plan_file = read_plan(options.plan)
    if options.rules is not None:
        from nnadapter.rules.reading import read_rules

        rules = read_rules(options.rules)
    return Constraints(POLICIES[options.policy], options.fallback, rules, plan_file)


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """What comes of constraints for one model at one set of shapes."""

    applied: AppliedRules | None = None
    """What rules did; None where there are none."""
    bound: MatchedPlan | None = None
    """What the plan file says; None where there is none."""
    whole: Kept | None = None
    """A whole placement that shall not be weighed against others; None where the policy decides."""

    @property
    def kept(self) -> Kept:
        """Atoms that stay where they are put as long as their device takes them."""
        if self.whole is not None:
            return self.whole
        return NOTHING_KEPT if self.bound is None else self.bound.placement


class SessionBans:
    """See `nnadapter.store.context.DeviceBans`. Usable from many threads at once.

    Args:
        device: its name.
        options: of its context.
        folder: of the session's cache; None where it has none.
    """

    def __init__(self, device: str, options: OptionValues, folder: Path | None) -> None:
        self._device, self._options, self._folder = device, options, folder
        self._lock = new_lock()
        self._bans = None if folder is None else self._made()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._bans)

    @property
    def all(self) -> tuple[Ban, ...]:
        """Those that hold now."""
        return () if self._bans is None else self._bans.all

    @property
    def of_nodes(self) -> bool:
        """Whether nodes are banned, and not only segments for their size."""
        return self._bans is not None and self._bans.of_nodes

    def find(self, model: SegmentModel) -> Ban | None:
        return None if self._bans is None else self._bans.find(model)

    def add(
        self,
        model: SegmentModel,
        nodes: Sequence[str],
        why: str,
        stage: str,
        *,
        is_size: bool = False,
        reproducer: str = "",
    ) -> Ban | None:
        with self._lock:
            if self._bans is None:
                self._bans = self._made()
        return self._bans.add(model, nodes, why, stage, is_size=is_size, reproducer=reproducer)

    def _made(self) -> DeviceBans:
        from nnadapter.store.context import DeviceBans

        return DeviceBans(self._device, self._options, self._folder)


@dataclass(frozen=True, eq=False)
class SessionDevice:
    """One device of a session."""

    name: str
    capability: Capability
    context: Context
    named: bool
    """The person named it."""
    options: OptionValues = field(default_factory=dict)
    """Of the context: every option, defaults filled in."""
    kernels: KernelTable = field(default_factory=KernelTable)
    """Custom kernels of the device, as they were when it was opened; the context calls them."""
    has_memory: bool = False
    """It has memory of its own, where values stay."""
    has_streams: bool = False
    """It works while the host goes on."""
    has_raw_inputs: bool = False
    """Its own code gets the addresses of inputs."""
    is_isolated: bool = False
    """It has a process of its own."""
    cache: CachedContext | None = None
    """The context, where it looks into a cache; None where the session has none."""
    bans: SessionBans | None = None
    """What it is not given any more; None for one that does not accelerate."""

    @property
    def accelerates(self) -> bool:
        """Whether nodes on it count as delegated."""
        return self.capability.role.accelerates

    @property
    def is_host(self) -> bool:
        """It is the device that takes what nobody else takes."""
        return self.capability.role is DeviceRole.HOST

    @property
    def takes_ir(self) -> bool:
        """It takes adapter IR."""
        return self.capability.form is ModelForm.IR

    def close(self) -> None:
        """Close the context."""
        named_call(self.name, "close")(close_all, [self.context])

    @property
    def is_spare(self) -> bool:
        """It is the last resort that nobody named: asked only for what everyone else refused."""
        return self.capability.role is DeviceRole.LAST_RESORT and not self.named

    @property
    def display_name(self) -> str:
        """How messages call it."""
        return "the CPU" if self.is_host else repr(self.name)


@dataclass(frozen=True, eq=False)
class Setting:
    """The devices of a session, in order of preference, the last resort included, and what a person demands."""

    devices: tuple[SessionDevice, ...]
    constraints: Constraints = field(default_factory=Constraints)
    trace: Trace = SILENT
    """Takes what happens in the session."""
    absent: tuple[Absent, ...] = ()
    """Devices that the person named and that failed when they were opened."""

    @cached_property
    def by_name(self) -> Mapping[str, SessionDevice]:
        """The devices."""
        return {device.name: device for device in self.devices}

    @cached_property
    def host(self) -> SessionDevice:
        """The device that takes what nobody else takes."""
        return next(device for device in self.devices if device.is_host)

    @cached_property
    def last_resort(self) -> SessionDevice:
        """The device for what even the host refuses."""
        return next(device for device in self.devices if device.capability.role is DeviceRole.LAST_RESORT)

    @cached_property
    def accelerators(self) -> frozenset[str]:
        """Names of the devices on which nodes count as delegated."""
        return frozenset(device.name for device in self.devices if device.accelerates)

    @cached_property
    def domains(self) -> frozenset[str]:
        """ONNX domains of which some device is offered nodes as they are."""
        return frozenset(domain for device in self.devices if device.takes_ir for domain in device.capability.domains)

    @cached_property
    def owning(self) -> frozenset[str]:
        """Names of the devices that have memory of their own, where values stay."""
        return frozenset(device.name for device in self.devices if device.has_memory)

    @cached_property
    def streaming(self) -> frozenset[str]:
        """Names of the devices whose steps are enqueued where that saves a wait."""
        return frozenset(
            device.name
            for device in self.devices
            if is_streaming(device.capability.threading, has_memory=device.has_memory, has_streams=device.has_streams)
        )

    @cached_property
    def costs(self) -> Mapping[str, DeviceCosts]:
        """What every device costs, worked out when somebody asks: calibrations are read for it."""
        from nnadapter.costs.cost_model import device_costs  # most sessions ask for none

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
        """Close every context, and write the trace."""
        try:
            close_all(self.devices)
        finally:
            self.trace.finish()


@contextmanager
def closed_on_failure(devices: Sequence[SessionDevice | Context]) -> Iterator[None]:
    """Close devices or contexts if the block raises."""
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
    """Open every requested device and create a context on it, and read what a person demands.

    A device that fails in that is left out, where the policy of stage `load` allows it.

    Raises:
        DeviceOpeningError, DriverError, OutOfMemoryError: a device failed, and may not.
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit; policy `latency`, and what a device costs was
            not measured, or that of the host beside it; a trace cannot be written.
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
        MissingExtraError: the policy weighs costs, a device accelerates, and scipy is not installed.
    """
    opened: list[SessionDevice] = []
    absents = Absents(options.fallback_at("load"))
    trace = trace_for(options.trace, session_options)
    with closed_on_failure(opened):
        with trace.span(SESSION, PLAN, "find devices"):
            chosen = absents.select(requests, partial(select, isolate=options.isolated))
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
    """The device with a context that looks into the session's cache, if there is one and the device accelerates."""
    if options.cache_dir in (None, False) or not device.accelerates:
        return device
    from nnadapter.store.context import cached_context

    context = cached_context(device.context, device.name, device.capability.form, device.options, options)
    return replace(device, context=context, cache=context)


def _banning(device: SessionDevice, options: Options) -> SessionDevice:
    """The device with its bans: those in the session's cache, if there is one."""
    if not device.accelerates:
        return device
    return replace(device, bans=SessionBans(device.name, device.options, _folder(options)))


def _folder(options: Options) -> Path | None:
    if options.cache_dir in (None, False):
        return None
    from nnadapter.store.folder import folder_of

    return folder_of(options).path


def _check_costs(setting: Setting) -> None:
    """Raise InvalidOptionError for devices whose costs nobody measured, with why no calibration of theirs is used."""
    from nnadapter.costs.cost_model import Source

    trusted = (Source.CALIBRATED, Source.SIMULATED)
    costs = {device.name: setting.costs[device.name] for device in setting.devices if device.accelerates}
    if any(cost.source is Source.CALIBRATED for cost in costs.values()):
        costs[setting.host.name] = setting.costs[setting.host.name]  # what was measured is not weighed against a guess
    unknown = {name: cost for name, cost in costs.items() if cost.source not in trusted}
    if not unknown:
        return
    what = ", ".join(f"{name!r} ({cost.source.value})" for name, cost in unknown.items())
    why = "".join(f"; {note}" for cost in unknown.values() for note in cost.missing_cost_notes)
    commands = " and ".join(f"`nnadapter calibrate {name}`" for name in unknown)
    needs = f"policy {setting.constraints.policy.name!r} needs calibrated costs, and has none of {what}"
    raise InvalidOptionError(f"{needs}; run {commands}, or choose policy 'measured'{why}")


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
