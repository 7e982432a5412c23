"""Kernel registration and selection.

A kernel fits if all its declarations hold. The choice among fitting kernels follows, in order: higher `priority`; fewer
transposed arguments; fewer accepted data types; more declared arguments; a kernel for this device before one for all
devices of its driver; later `since_version`; user before driver; later registration.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any

from nnadapter.drivers import Context, Kernel, KernelType, Reason, Target, Unsupported
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.kernel import (
    InferRule,
    KernelFunction,
    KernelOrigin,
    add_kernel,
    registered_kernels,
    remove_kernel,
)
from nnadapter.drivers.registry import device_of, inside, sources
from nnadapter.drivers.selection import HOSTS, canonical
from nnadapter.errors import FAILURES, DriverWarning, InvalidOptionError, close_names, describe
from nnadapter.ir.operand import Layout, OperandType
from nnadapter.ir.operations.custom import CustomCall
from nnadapter.records import dataclass, replace

_IMAGE_RANK = 4
_INFER = "its infer"
_ANYTHING = KernelType(target=Target.ANY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """Op, attributes and types of a node that needs a kernel."""

    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, Any]
    inputs: tuple[OperandType | None, ...]
    outputs: tuple[OperandType, ...] | None = None
    """Types of the outputs; None if only the kernel infers them."""

    @classmethod
    def of(cls, call: CustomCall, inputs: Sequence[OperandType]) -> Request:
        return cls(
            domain=call.domain,
            op_type=call.op_type,
            version=call.since_version,
            attributes=call.attributes,
            inputs=tuple(call.spread(inputs)),
            outputs=call.outputs,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Selected kernel with its output types."""

    kernel: Kernel
    outputs: tuple[OperandType, ...]


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Kernels of one device."""

    device: str = ""
    kernels: tuple[Kernel, ...] = ()

    @cached_property
    def by_op(self) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
        kernels_by_op: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in self.kernels:
            kernels_by_op.setdefault(kernel.op, []).append(kernel)
        return {op: tuple(of_op) for op, of_op in kernels_by_op.items()}

    def choose(self, request: Request) -> Choice | Unsupported:
        kernels = self.by_op.get((request.domain, request.op_type), ())
        misfits = [(kernel, misfit(kernel, request)) for kernel in kernels]
        fitting = [kernel for kernel, text in misfits if not text]
        refusals = [f"kernel {kernel.name!r}: {text}" for kernel, text in misfits if text]
        for kernel in sorted(fitting, key=lambda fitting_kernel: order(fitting_kernel, request)):
            outputs = _outputs(kernel, request)
            if not isinstance(outputs, str):
                warn_of_infer(refusals)
                return Choice(kernel, outputs)
            refusals.append(f"kernel {kernel.name!r}: {outputs}")
        operator_name = f"{request.domain}::{request.op_type}" if request.domain else request.op_type
        reasons = f": {'; '.join(refusals)}" if refusals else ""
        detail = f"no kernel of device {self.device!r} fits {operator_name}{reasons}"
        return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)


def warn_of_infer(refusals: Sequence[str]) -> None:
    """Warn about kernels that were skipped because their function `infer` failed."""
    failed = [refusal for refusal in refusals if f": {_INFER}" in refusal]
    if failed:
        warnings.warn(f"{'; '.join(failed)}; the kernel is skipped, so correct its infer", DriverWarning, stacklevel=2)


def misfit(kernel: Kernel, request: Request) -> str:
    """Describe the first mismatch; empty if the kernel fits."""
    return next(_misfits(kernel, request), "")


def _misfits(kernel: Kernel, request: Request) -> Iterator[str]:
    last = kernel.until_version
    if request.version < kernel.since_version or (last is not None and request.version > last):
        versions = f"{kernel.since_version} and later" if last is None else f"{kernel.since_version} to {last}"
        yield f"it supports versions {versions} of the op, the node has {request.version}"
    if kernel.attributes is not None and not request.attributes.keys() <= kernel.attributes.keys():
        unknown = sorted(request.attributes.keys() - kernel.attributes.keys())
        yield f"it does not know the attributes {', '.join(unknown)}"
    for side, stated, types in (
        ("input", kernel.inputs, request.inputs),
        ("output", kernel.outputs, request.outputs or ()),
    ):
        if types and len(stated) > len(types) and side == "output":
            yield f"it declares {len(stated)} outputs, the node has {len(types)}"
        for position, (kernel_type, type_) in enumerate(zip(stated, types, strict=False)):
            mismatch = "" if type_ is None else _mismatch(kernel_type, type_)
            if mismatch:
                yield f"{side} {position} {mismatch}"


def _mismatch(kernel_type: KernelType, type_: OperandType) -> str:
    if kernel_type.target is Target.DEVICE:
        return "is required in device memory, but drivers pass host memory"
    if type_.dtype not in kernel_type.precision:
        return f"is {type_.dtype.value}, expected {', '.join(sorted(kernel_type.precision))}"
    if kernel_type.layout is Layout.NHWC and type_.rank != _IMAGE_RANK:
        return f"has rank {type_.rank}, its layout NHWC is for rank {_IMAGE_RANK}"
    return ""


def order(kernel: Kernel, request: Request) -> tuple[int, ...]:
    """Return the sort key of a kernel; the smallest is chosen."""
    pairs = [*_paired(kernel.inputs, request.inputs), *_paired(kernel.outputs, request.outputs or ())]
    return (
        -kernel.priority,
        sum(needs_transpose(kernel_type, type_) for kernel_type, type_ in pairs),
        sum(len(kernel_type.precision) for kernel_type, _ in pairs),
        -len(kernel.inputs) - len(kernel.outputs),
        0 if ":" in kernel.device else 1,
        -kernel.since_version,
        0 if kernel.origin is KernelOrigin.USER else 1,
        -kernel.number,
    )


def _paired(
    stated: Sequence[KernelType], types: Sequence[OperandType | None]
) -> Iterator[tuple[KernelType, OperandType | None]]:
    for kernel_type, type_ in zip_longest(stated[: len(types)], types):
        yield kernel_type or _ANYTHING, type_


def needs_transpose(kernel_type: KernelType, type_: OperandType | None) -> bool:
    """Return True if the host must transpose an argument to the kernel's layout."""
    return (
        kernel_type.layout is not None
        and type_ is not None
        and type_.layout is not kernel_type.layout
        and type_.rank == _IMAGE_RANK
    )


def inferred(infer: InferRule, request: Request, attributes: Mapping[str, Any]) -> tuple[OperandType, ...] | str:
    """Return the output types of `infer`, or a description of its failure."""
    try:
        output_types = infer(request.inputs, attributes)
    except FAILURES as error:  # user code may raise anything
        return f"{_INFER} failed: {describe(error)}"
    types = (output_types,) if isinstance(output_types, OperandType) else output_types
    if (
        isinstance(types, (tuple, list))
        and types
        and all(isinstance(output_type, OperandType) for output_type in types)
    ):
        return tuple(types)
    return f"{_INFER} returned {output_types!r}, expected an OperandType for each output"


def complete(kernel: Kernel, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's defaults, overridden by the node's attributes."""
    return {**(kernel.attributes or {}), **attributes}


def _outputs(kernel: Kernel, request: Request) -> tuple[OperandType, ...] | str:
    declared_outputs = request.outputs
    if kernel.infer is None:
        no_types = "neither ONNX nor the model has its output types, and it has no infer"
        return no_types if declared_outputs is None else declared_outputs
    output_types = inferred(kernel.infer, request, complete(kernel, request.attributes))
    if isinstance(output_types, str) or declared_outputs is None:
        return output_types
    inferred_forms, forms = (
        [(type_.dtype, type_.dimensions) for type_ in types] for types in (output_types, declared_outputs)
    )
    if inferred_forms[: len(forms)] != forms:
        return f"it infers {', '.join(map(str, output_types))}; the model has {', '.join(map(str, declared_outputs))}"
    return declared_outputs


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
    """Register `function` as kernel of an ONNX op on a device, for sessions and contexts opened from now on.

    Args:
        device: `driver`, or `driver:id` for one device; need not be installed.
        op_type: the ONNX op.
        function: gets read-only numpy arrays (None if absent), and attributes with ONNX's defaults as keywords; returns
            an array, or a tuple of one per output.
        domain: empty for ONNX's own.
        since_version: first version of the op's schema, or of the domain's opset if there is no schema.
        until_version: last version.
        inputs: see `KernelType`.
        outputs: see `KernelType`.
        attributes: supported attributes with defaults; None for any.
        infer: input types, attributes -> output types; needed if neither ONNX nor the model has them.
        name: for reports.
        priority: decides before all other criteria.
        overrides: also replace nodes that the device supports.

    Returns:
        The kernel, for `unregister_kernel`.

    Raises:
        InvalidOptionError: an invalid argument, or a host device.
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
    chosen = canonical(device) if isinstance(device, str) and ":" not in device else device
    if not isinstance(chosen, str) or not chosen:
        raise InvalidOptionError(f"a kernel is registered for a device name such as 'fake_npu', got {device!r}")
    chosen = device_of(chosen)  # kernels compute in their own precision
    if inside(chosen).partition(":")[0] in HOSTS:
        raise InvalidOptionError(
            f"a kernel is registered for device {chosen!r}, which is the fallback of other devices; register it for an "
            "accelerator such as fake_npu, or give ONNX Runtime a library of custom ops in session options"
        )
    _warn_of_an_unknown_name(chosen)
    return chosen


def _warn_of_an_unknown_name(device: str) -> None:
    driver, driver_names = device.partition(":")[0], sources().keys() - HOSTS
    if driver not in driver_names:
        hint = close_names(driver, driver_names)
        warnings.warn(f"a kernel is registered for {device!r}, which no driver offers now; {hint}", DriverWarning, 4)


def kernel(device: str, op_type: str, **details: Any) -> Callable[[KernelFunction], KernelFunction]:
    """Decorate a kernel; `details` as for `register_kernel`."""

    def register(function: KernelFunction) -> KernelFunction:
        register_kernel(device, op_type, function, **details)
        return function

    return register


def unregister_kernel(kernel: Kernel) -> None:
    """Unregister a kernel, if registered. Open sessions keep it."""
    remove_kernel(kernel)


def kernel_table(device: str, context: Context) -> KernelTable:
    """Return the kernels of a device. Invalid kernels of its driver are skipped with a DriverWarning."""
    driver, _, id_ = inside(device).partition(":")
    names = {driver, f"{driver}:{id_ or 0}"}
    user_kernels = tuple(user_kernel for user_kernel in registered_kernels() if user_kernel.device in names)
    try:
        offered = named_call(device, "kernels")(lambda: list(context.kernels()))
        if not all(isinstance(offered_kernel, Kernel) for offered_kernel in offered):
            raise TypeError("Context.kernels returned other objects than Kernel")
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
