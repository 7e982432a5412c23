"""What a session works with: its devices, opened, with a context each, and what a person demands of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from nnadapter.costs.device_costs import DeviceCosts, Source, device_costs
from nnadapter.drivers.border import open_context
from nnadapter.drivers.capability import Capability, DeviceRole, ModelForm, OptionValues
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Context
from nnadapter.drivers.selection import REFERENCE, DeviceRequest, Selected, check_options, select
from nnadapter.drivers.streams import is_streaming
from nnadapter.errors import InvalidOptionError
from nnadapter.kernels.choosing import KernelTable
from nnadapter.kernels.context import with_kernels
from nnadapter.options import Options
from nnadapter.planning.constraints import Constraints, read_constraints
from nnadapter.process.closing import close_all
from nnadapter.process.extras import require_extra
from nnadapter.traces.asking import trace_for
from nnadapter.traces.event import PLAN, SESSION
from nnadapter.traces.trace import SILENT, Trace

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.caching.context import CachedContext

_TRUSTED = frozenset((Source.CALIBRATED, Source.SIMULATED))
"""Where costs of a named device come from, where a policy promises; and the host's, where any was calibrated."""


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
    cache: CachedContext | None = None
    """The context, where it looks into a cache; None where the session has none."""

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
        return {
            device.name: replace(
                device_costs(device.name, device.capability, device.context, device.options), keeps=device.has_memory
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
def closed_on_failure(devices: Sequence[SessionDevice]) -> Iterator[None]:
    """Close the contexts of `devices` if the block raises."""
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

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit; policy `latency`, and what a device costs was
            not measured, or that of the host beside it; a trace cannot be written.
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
        StoredFileError: a calibration cannot be used.
        MissingExtraError: the policy weighs costs, a device accelerates, and scipy is not installed.
    """
    opened: list[SessionDevice] = []
    trace = trace_for(options.trace, session_options)
    with closed_on_failure(opened):
        with trace.span(SESSION, PLAN, "find devices"):
            chosen = select(requests)
        for selected in chosen:
            opened.append(_cached(_open(selected, session_options, trace), options))
        if all(device.name != REFERENCE for device in opened):
            last_resort = Selected(REFERENCE, check_options(REFERENCE, {}), named=False)
            opened.append(_open(last_resort, session_options, SILENT))
        setting = Setting(tuple(opened), read_constraints(options), trace)
        if setting.constraints.policy.weighs and setting.accelerators:
            require_extra("latency", f"policy {options.policy!r}")
        if setting.constraints.policy.promises:
            _check_costs(setting)
    return setting


def _open(selected: Selected, session_options: onnxruntime.SessionOptions | None, trace: Trace) -> SessionDevice:
    with trace.span(selected.name, PLAN, "open"):
        device, context = open_context(selected, trace)
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
        has_memory=bool(named_call(selected.name, "has_memory")(getattr, device, "has_memory")),
        has_streams=bool(named_call(selected.name, "has_streams")(getattr, device, "has_streams")),
    )


def _cached(device: SessionDevice, options: Options) -> SessionDevice:
    """The device with a context that looks into the session's cache, if there is one and the device accelerates."""
    if options.cache_dir in (None, False) or not device.accelerates:
        return device
    from nnadapter.caching.opening import cached_context

    context = cached_context(device.context, device.name, device.capability.form, device.options, options)
    return replace(device, context=context, cache=context)


def _check_costs(setting: Setting) -> None:
    """Raise InvalidOptionError for devices whose costs nobody measured, with why no calibration of theirs is used."""
    costs = {device.name: setting.costs[device.name] for device in setting.devices if device.accelerates}
    if any(each.source is Source.CALIBRATED for each in costs.values()):
        costs[setting.host.name] = setting.costs[setting.host.name]  # what was measured is not weighed against a guess
    unknown = {name: each for name, each in costs.items() if each.source not in _TRUSTED}
    if not unknown:
        return
    what = ", ".join(f"{name!r} ({each.source.value})" for name, each in unknown.items())
    why = "".join(f"; {note}" for each in unknown.values() for note in each.why)
    commands = " and ".join(f"`nnadapter calibrate {name}`" for name in unknown)
    needs = f"policy {setting.constraints.policy.name!r} needs calibrated costs, and has none of {what}"
    raise InvalidOptionError(f"{needs}; run {commands}, or choose policy 'measured'{why}")
