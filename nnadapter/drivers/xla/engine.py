"""Boundary to the package `jax`: lazy import, thread-local settings, translated errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import MappingProxyType
from typing import Any

from nnadapter import errors
from nnadapter.drivers.failures import one_line, translated_as
from nnadapter.process.packages import has_extra, missing_extra
from nnadapter.process.resources import Threads, memoize

EXTRA = "xla"

_SETTINGS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "enable_x64": (True,),
        "debug_infs": (False,),
        "debug_nans": (False,),
        "disable_jit": (False,),
        "numpy_dtype_promotion": ("standard",),
        "numpy_rank_promotion": ("allow",),
        "transfer_guard_device_to_device": ("allow", None),
        "transfer_guard_device_to_host": ("allow", None),
        "transfer_guard_host_to_device": ("allow", None),
    }
)
"""JAX setting that could change results or stop a model -> accepted values. The first replaces any other value."""


def missing(device: str) -> errors.MissingExtraError:
    """Return the error for a missing package `jax`."""
    return missing_extra(EXTRA, f"device {device!r}", errors.MissingDeviceExtraError)


@memoize(1)
def module() -> Any:
    """Return the package.

    Raises:
        MissingDeviceExtraError: it is not installed.
        DeviceUnavailableError: it does not load.
    """
    if not has_extra(EXTRA):
        raise missing("xla")
    try:
        import jax
        import jax.export
    except Exception as error:  # other jaxlibs raise RuntimeError, broken ones anything
        raise errors.DeviceUnavailableError(
            f"the package jax does not load ({brief(error)}); install it again"
        ) from error
    return jax


def version() -> str:
    """Return the versions of JAX and jaxlib."""
    import jaxlib

    return f"{module().__version__} ({jaxlib.__version__})"


@memoize(1)
def _threads() -> Threads:
    return Threads()


def own_settings() -> AbstractContextManager[Any]:
    """Return a context manager that applies our JAX settings in this thread; raise DeviceLostError after a fork."""
    if _threads().are_gone:
        raise errors.DeviceLostError(
            "XLA does not work in a process that was forked after XLA was used: its threads are gone; "
            "start processes by spawn, or fork before the device is opened"
        )
    jax, stack = module(), ExitStack()
    for name, values in _SETTINGS.items():
        if getattr(jax.config, f"jax_{name}") not in values:  # reading is much faster than setting
            stack.enter_context(getattr(jax, name)(values[0]))
    return stack


def present(kind: str) -> Sequence[Any]:
    """Return JAX's local devices of a kind."""
    try:
        return tuple(module().local_devices(backend=kind))
    except (RuntimeError, AssertionError):  # no such backend
        return ()


def default_kind() -> str:
    """Return JAX's default kind of device."""
    with translated("JAX has no backend", "see JAX_PLATFORMS", errors.DeviceUnavailableError):
        return str(module().default_backend())


def translated(failure: str, advice: str, kind: type[errors.NNAdapterError]) -> AbstractContextManager[None]:
    """Translate JAX's exceptions into `kind`; the message has `failure` and `advice`."""
    return translated_as(failure, advice, kind, brief)


def run_translated() -> AbstractContextManager[None]:
    """Translate JAX's exceptions of a run into ExecutionError."""
    return translated("XLA failed to run the segment", "choose another device for it", errors.ExecutionError)


def brief(error: BaseException) -> str:
    """Return the message of JAX's exception on one line."""
    return one_line(str(error), error)
