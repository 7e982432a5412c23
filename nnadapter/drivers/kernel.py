"""Kernels, the types that they declare, and the kernels registered in this process.

Source: Paddle Lite's kernels (op, target, precision, layout, and a type for every input and output, as overloads) and
Paddle's `PD_REGISTER_PLUGIN_KERNEL`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nnadapter.errors import InvalidOptionError
from nnadapter.ir.operand import ANY, DataType, Layout, OperandType
from nnadapter.onnx.domains import plain_domain
from nnadapter.process.resources import new_lock


class Target(StrEnum):
    """Where an argument lies when the kernel is called."""

    ANY = "any"
    HOST = "host"
    DEVICE = "device"
    """In the device's own memory, which no driver hands over: such a kernel is never chosen, and refusals say so."""


class KernelOrigin(StrEnum):
    """Who registered a kernel."""

    USER = "user"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelType:
    """What one argument has to be. Source: Paddle Lite's `LiteType::GetTensorTy(target, precision, layout)`."""

    target: Target = Target.HOST
    precision: frozenset[DataType] = ANY
    """Data types; one or several names are taken as well."""
    layout: Layout | None = None
    """Order of the axes; None for ONNX's, whatever the rank. `NHWC` is for rank 4 alone: the host turns axes around,
    before the call for inputs and after it for outputs."""

    def __post_init__(self) -> None:
        """Read what was given.

        Raises:
            InvalidOptionError: it is no target, data type or layout.
        """
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
            raise InvalidOptionError("a kernel's argument has no data type; leave precision out for all of them")


KernelFunction = Callable[..., Any]
"""Read-only arrays by position (None for absent inputs), attributes by keyword -> an array, or one per output."""
InferRule = Callable[[Sequence[OperandType | None], Mapping[str, Any]], OperandType | Sequence[OperandType]]
"""Types of the inputs (None where absent) and attributes -> types of the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """One registered kernel. Equal to itself alone."""

    op_type: str
    """The ONNX op that it computes."""
    function: KernelFunction
    """Takes read-only numpy arrays and gives arrays of its own; may be called in several threads."""
    device: str = ""
    """`driver` for all of a driver's devices, `driver:id` for one; empty for those of the driver that offers it."""
    domain: str = ""
    """Empty for ONNX's own."""
    since_version: int = 1
    """The first version of the op's schema that it is for; of the domain's opset, where there is no schema."""
    until_version: int | None = None
    """The last one; None for all that come."""
    inputs: tuple[KernelType, ...] = ()
    """By position; arguments beyond them may be anything."""
    outputs: tuple[KernelType, ...] = ()
    """By position."""
    attributes: Mapping[str, Any] | None = None
    """The attributes that it understands, with defaults: it is not chosen for a node that has others. None for any."""
    infer: InferRule | None = None
    """Types of the outputs; needed where neither ONNX nor the model says what they are."""
    name: str = ""
    """What reports call it; the function's name if empty."""
    priority: int = 0
    """Goes before everything else in the choice; higher is chosen first."""
    overrides: bool = False
    """Also computes what the device itself takes; otherwise only what it refuses."""
    origin: KernelOrigin = KernelOrigin.DRIVER
    """Who registered it."""
    number: int = 0
    """Counts registrations."""

    def __post_init__(self) -> None:
        """Check what was given.

        Raises:
            InvalidOptionError: the function cannot be called, a name is none, or the versions leave nothing.
        """
        if not callable(self.function):
            raise InvalidOptionError(f"a kernel's function is {self.function!r}, expected something to call")
        if self.infer is not None and not callable(self.infer):
            raise InvalidOptionError(f"a kernel's infer is {self.infer!r}, expected something to call, or None")
        for attribute in ("op_type", "device", "domain", "name"):
            if not isinstance(getattr(self, attribute), str):
                raise InvalidOptionError(f"a kernel's {attribute} is {getattr(self, attribute)!r}, expected a text")
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
        """Domain and op type."""
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
    """Remember a kernel."""
    with _lock:
        _registered.append(kernel)


def remove_kernel(kernel: Kernel) -> None:
    """Forget a kernel; one that is not there is passed over."""
    with _lock:
        _registered[:] = [registered_kernel for registered_kernel in _registered if registered_kernel is not kernel]


def registered_kernels() -> tuple[Kernel, ...]:
    """Every kernel that was registered by a person, in that order."""
    with _lock:
        return tuple(_registered)
