"""Custom kernels and their registry.

Sources: Paddle Lite's kernels, which overload an op by target, precision and layout per argument, and Paddle's
`PD_REGISTER_PLUGIN_KERNEL`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from nnadapter.errors import InvalidOptionError
from nnadapter.ir.operand import ANY, DataType, Layout, OperandType
from nnadapter.onnx.domains import plain_domain
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass


class Target(StrEnum):
    """Memory of an argument when the kernel is called."""

    ANY = "any"
    HOST = "host"
    DEVICE = "device"
    """Device memory. No driver supports such kernels, so they are never chosen, and refusals give this reason."""


class KernelOrigin(StrEnum):
    """Source of a kernel: the user or a driver."""

    USER = "user"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelType:
    """Requirements on one argument. Source: Paddle Lite's `LiteType::GetTensorTy(target, precision, layout)`."""

    target: Target = Target.HOST
    precision: frozenset[DataType] = ANY
    """Data types; the constructor also accepts names."""
    layout: Layout | None = None
    """Order of axes; None for ONNX's order. `NHWC` requires rank 4; the host transposes inputs and outputs."""

    def __post_init__(self) -> None:
        precision = self.precision
        names = (precision,) if isinstance(precision, str) else precision
        try:
            object.__setattr__(self, "target", Target(self.target))
            object.__setattr__(self, "precision", frozenset(map(DataType, names)))
            object.__setattr__(self, "layout", None if self.layout is None else Layout(self.layout))
        except (TypeError, ValueError) as error:
            raise InvalidOptionError(
                f"a kernel's argument has target {self.target!r}, precision {precision!r} and layout {self.layout!r}: "
                f"{error}; expected one of {', '.join(Target)}, data types such as 'float32', and NCHW, NHWC or None"
            ) from None
        if not self.precision:
            raise InvalidOptionError("a kernel's argument has no data type; omit precision to allow all")


KernelFunction = Callable[..., Any]
"""Function of read-only arrays by position (None if absent) and attributes by keyword. It returns one array, or one per
output.
"""
InferRule = Callable[[Sequence[OperandType | None], Mapping[str, Any]], OperandType | Sequence[OperandType]]
"""Function of the inputs' types (None if absent) and attributes. It returns the types of the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """Registered kernel, compared by identity."""

    op_type: str
    function: KernelFunction
    """Function that gets read-only numpy arrays and returns new ones. Several threads may call it."""
    device: str = ""
    """`driver` or `driver:id`; empty for the devices of the driver that provides the kernel."""
    domain: str = ""
    """Empty for ONNX's own domain."""
    since_version: int = 1
    """First schema version of the op; for an op without schema, first opset version of its domain."""
    until_version: int | None = None
    inputs: tuple[KernelType, ...] = ()
    """Types of inputs by position; inputs without an entry are unrestricted."""
    outputs: tuple[KernelType, ...] = ()
    attributes: Mapping[str, Any] | None = None
    """Supported attributes and their default values. Other attributes lead to refusal. None accepts any."""
    infer: InferRule | None = None
    """Types of the outputs; required if neither ONNX nor the model defines them."""
    name: str = ""
    """Name in reports; by default the function's."""
    priority: int = 0
    """Kernels with a higher priority are chosen first. Other criteria decide between equal priorities."""
    overrides: bool = False
    """True to replace the device's implementation; otherwise the kernel serves only nodes that the device refuses."""
    origin: KernelOrigin = KernelOrigin.DRIVER
    number: int = 0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidOptionError(f"a kernel's function is {self.function!r}, expected a callable")
        if self.infer is not None and not callable(self.infer):
            raise InvalidOptionError(f"a kernel's infer is {self.infer!r}, expected a callable or None")
        for attribute in ("op_type", "device", "domain", "name"):
            if not isinstance(getattr(self, attribute), str):
                raise InvalidOptionError(f"a kernel's {attribute} is {getattr(self, attribute)!r}, expected a str")
        if not self.op_type:
            raise InvalidOptionError("a kernel's op_type is empty, expected the name of an ONNX op")
        kernel_name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", kernel_name)
        object.__setattr__(self, "domain", plain_domain(self.domain))
        object.__setattr__(self, "inputs", _types(kernel_name, "inputs", self.inputs))
        object.__setattr__(self, "outputs", _types(kernel_name, "outputs", self.outputs))
        _check_numbers(self)

    @property
    def op(self) -> tuple[str, str]:
        return self.domain, self.op_type


def _check_numbers(kernel: Kernel) -> None:
    try:
        operator.index(kernel.priority)
        first, last = operator.index(kernel.since_version), kernel.until_version
        wrong = first < 1 or (last is not None and operator.index(last) < first)
    except TypeError:
        wrong = True
    if wrong:
        raise InvalidOptionError(
            f"kernel {kernel.name!r} is for versions {kernel.since_version!r} to {kernel.until_version!r} with "
            f"priority {kernel.priority!r}; expected whole numbers, the first version at least 1 and no later than "
            "the last"
        )


def _types(kernel_name: str, kind: str, kernel_types: object) -> tuple[KernelType, ...]:
    if not isinstance(kernel_types, (tuple, list)) or not all(
        isinstance(kernel_type, KernelType) for kernel_type in kernel_types
    ):
        raise InvalidOptionError(f"kernel {kernel_name!r} has {kind} {kernel_types!r}, expected a list of KernelType")
    return tuple(kernel_types)


_lock = new_lock()
_registered: list[Kernel] = []


def add_kernel(kernel: Kernel) -> None:
    """Register a kernel."""
    with _lock:
        _registered.append(kernel)


def remove_kernel(kernel: Kernel) -> None:
    """Unregister a kernel; ignore unknown ones."""
    with _lock:
        _registered[:] = [registered_kernel for registered_kernel in _registered if registered_kernel is not kernel]


def registered_kernels() -> tuple[Kernel, ...]:
    """Return the users' kernels in order of registration."""
    with _lock:
        return tuple(_registered)
