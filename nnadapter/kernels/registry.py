"""The kernels that people registered, and the table of one device: those with what its driver offers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Context
from nnadapter.drivers.kernel import InferRule, Kernel, KernelFunction, KernelOrigin, KernelType
from nnadapter.drivers.registry import inside, sources
from nnadapter.drivers.selection import HOSTS, canonical
from nnadapter.errors import FAILURES, DriverWarning, InvalidOptionError, close_names, describe
from nnadapter.kernels.choosing import KernelTable
from nnadapter.kernels.registered import add_kernel, registered_kernels, remove_kernel

_count = itertools.count(1)


def register_kernel(
    device: str,
    op_type: str,
    function: KernelFunction,
    *,
    domain: str = "",
    since_version: int = 1,
    until_version: int | None = None,
    inputs: Sequence[KernelType] = (),
    outputs: Sequence[KernelType] = (),
    attributes: Mapping[str, Any] | None = None,
    infer: InferRule | None = None,
    name: str = "",
    priority: int = 0,
    overrides: bool = False,
) -> Kernel:
    """Let `function` compute an ONNX op on a device, in sessions and contexts that are opened from now on.

    Args:
        device: `driver` for every device of a driver, `driver:id` for one. It need not be installed.
        op_type: the ONNX op.
        function: takes the node's inputs as read-only numpy arrays (None where absent) and its attributes by keyword,
            ONNX's defaults filled in; gives an array, or a tuple of one per output, of its own. Host memory.
        domain: the op's; empty for ONNX's own.
        since_version: first version of the op's schema; of the domain's opset, where there is no schema.
        until_version: last version.
        inputs: types of arguments by position; see `KernelType`.
        outputs: types of results by position.
        attributes: the attributes that it understands, with defaults; None for any.
        infer: types of inputs and attributes -> types of outputs, where neither ONNX nor the model knows them.
        name: what reports call it.
        priority: goes before everything else in the choice.
        overrides: also for nodes that the device takes itself.

    Returns:
        The kernel, which `unregister_kernel` takes. A DriverWarning says if no driver offers the device now.

    Raises:
        InvalidOptionError: something does not fit, or `device` is one that takes what others refuse.
    """
    kernel = Kernel(
        device=_accelerator(device),
        op_type=op_type,
        function=function,
        domain=domain,
        since_version=since_version,
        until_version=until_version,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=None if attributes is None else dict(attributes),
        infer=infer,
        name=name,
        priority=priority,
        overrides=overrides,
        origin=KernelOrigin.USER,
        number=next(_count),
    )
    add_kernel(kernel)
    return kernel


def _accelerator(device: object) -> str:
    """The name of a device that takes kernels."""
    chosen = canonical(device) if isinstance(device, str) and ":" not in device else device
    if not isinstance(chosen, str) or not chosen:
        raise InvalidOptionError(f"a kernel is registered for a device by its name, got {device!r}")
    if inside(chosen).partition(":")[0] in HOSTS:
        raise InvalidOptionError(
            f"a kernel is registered for device {chosen!r}, which takes what devices refuse; register it for one of "
            "these, such as fake_npu, or give ONNX Runtime a library of custom ops in session options"
        )
    _warn_of_an_unknown_name(chosen)
    return chosen


def _warn_of_an_unknown_name(device: str) -> None:
    """A driver may be installed later, so that a name that is unknown is no error."""
    driver, driver_names = device.partition(":")[0], sources().keys() - HOSTS
    if driver not in driver_names:
        hint = close_names(driver, driver_names)
        warnings.warn(f"a kernel is registered for {device!r}, which no driver offers now; {hint}", DriverWarning, 4)


def kernel(device: str, op_type: str, **details: Any) -> Callable[[KernelFunction], KernelFunction]:
    """Return a decorator that registers a function; `details` are those of `register_kernel`."""

    def register(function: KernelFunction) -> KernelFunction:
        register_kernel(device, op_type, function, **details)
        return function

    return register


def unregister_kernel(kernel: Kernel) -> None:
    """Forget a kernel; sessions that are open keep it. One that is not registered is passed over."""
    remove_kernel(kernel)


def kernel_table(device: str, context: Context) -> KernelTable:
    """Return the kernels of a device: those that its context offers, and those that people registered for it.

    What a driver offers is left out, with a DriverWarning, if it is no list of kernels.
    """
    driver, _, id_ = inside(device).partition(":")
    names = {driver, f"{driver}:{id_ or 0}"}
    user_kernels = tuple(user_kernel for user_kernel in registered_kernels() if user_kernel.device in names)
    try:
        offered = named_call(device, "kernels")(lambda: list(context.kernels()))
        if not all(isinstance(offered_kernel, Kernel) for offered_kernel in offered):
            raise TypeError("Context.kernels gave something that is no Kernel")
    except FAILURES as error:
        warnings.warn(
            f"device {device!r} offers no kernels: {describe(error)}; report it to the vendor",
            DriverWarning,
            stacklevel=2,
        )
        offered = []
    theirs = tuple(
        replace(offered_kernel, origin=KernelOrigin.DRIVER, number=number - len(offered))
        for number, offered_kernel in enumerate(offered)
        if offered_kernel.device in ("", *names)
    )
    return KernelTable(device, (*theirs, *user_kernels))
