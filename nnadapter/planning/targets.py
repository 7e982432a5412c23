"""The devices of one session: opened, with a context each, in order of preference; the last resort behind the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnadapter.drivers.border import open_context
from nnadapter.drivers.capability import Capability, OptionValues
from nnadapter.drivers.interface import Context
from nnadapter.drivers.selection import CPU, REFERENCE, DeviceRequest, Selected, check_options, select
from nnadapter.kernels.choosing import KernelTable
from nnadapter.kernels.context import with_kernels
from nnadapter.process.closing import close_all

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True, eq=False)
class Target:
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

    @property
    def is_cpu(self) -> bool:
        """It is the device that takes what nobody else takes."""
        return self.name == CPU

    @property
    def is_spare(self) -> bool:
        """It is the last resort that nobody named: asked only for what everyone else refused."""
        return self.name == REFERENCE and not self.named


def open_targets(
    requests: DeviceRequest | Sequence[DeviceRequest], session_options: onnxruntime.SessionOptions | None = None
) -> tuple[Target, ...]:
    """Open every requested device and create a context on it; the last resort comes behind them, named or not.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit.
    """
    opened: list[Target] = []
    with closed_on_failure(opened):
        for selected in select(requests):
            opened.append(_open(selected, session_options))
        if all(target.name != REFERENCE for target in opened):
            opened.append(_open(Selected(REFERENCE, check_options(REFERENCE, {}), named=False), session_options))
    return tuple(opened)


@contextmanager
def closed_on_failure(targets: Sequence[Target]) -> Iterator[None]:
    """Close the contexts of `targets` if the block raises."""
    try:
        yield
    except BaseException:
        close_all(target.context for target in targets)
        raise


def _open(selected: Selected, session_options: onnxruntime.SessionOptions | None) -> Target:
    device, context = open_context(selected)
    if selected.name == CPU:
        from nnadapter.drivers.onnxruntime.driver import CpuContext

        context = CpuContext(session_options)
    context, kernels = with_kernels(selected.name, device.capability, context)
    return Target(selected.name, device.capability, context, selected.named, selected.options, kernels)
