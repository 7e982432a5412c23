"""Boundary to the package `openvino`: lazy import, translated errors, ports and shared arrays.

OpenVINO's tools that convert models: left out where the driver, which does not use them, imports the package.

They take longer to import than all the rest of it, and once they are imported, a process of theirs sends a message over
the network. Who asks the package for them gets them then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.failures import one_line, translated_as
from nnadapter.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    MissingDeviceExtraError,
    MissingExtraError,
    NNAdapterError,
)
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.process.lazily import lazily
from nnadapter.process.packages import has_extra, missing_extra
from nnadapter.process.resources import Threads, memoize

_PACKAGE = "openvino"
_TOOLS = "openvino.tools.ovc"


@contextmanager
def without_conversion_tools() -> Iterator[None]:
    """While this thread imports the package in the block, that finds no tools, which it need not have."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # for good: other threads are in the middle of that list
    _FINDER.threads.add(get_ident())
    try:
        yield
    finally:
        _FINDER.threads.discard(get_ident())


class _Finder:
    """Keeps the tools from threads that import the package. It offers them later, before any thread has it whole."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Leave a module to the other finders.

        Raises:
            ModuleNotFoundError: the tools are looked for.
        """
        if name == _TOOLS and get_ident() in self.threads and _is_being_imported():
            vars(sys.modules[_PACKAGE]).setdefault("__getattr__", _offered)
            raise ModuleNotFoundError(f"{name} is imported when it is used", name=name)


_FINDER = _Finder()
_tools = lazily(_PACKAGE, {_TOOLS: "convert_model"})


def _offered(name: str) -> Any:
    """The package's `__getattr__`: as without us, there is no such name where the tools cannot be imported."""
    try:
        return _tools(name)
    except ImportError as error:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}: {error}") from error


def _is_being_imported() -> bool:
    spec = getattr(sys.modules.get(_PACKAGE), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


EXTRA = "openvino"
OLDEST = (2026, 0)
"""The first version in which the sweep of `tests/drivers/openvino/sweep` finds all right that is taken."""
_NOISE = re.compile(r"Exception from \S+?:\d+:|Check '.*?' failed at \S+?:\d+:|\(None\)")


def missing(device: str) -> MissingExtraError:
    """The error that `device` cannot be used without the package."""
    return missing_extra(EXTRA, f"device {device!r}", MissingDeviceExtraError)


@memoize(1)
def module() -> Any:
    """The package.

    Raises:
        MissingDeviceExtraError: it is not installed.
        DeviceUnavailableError: it does not load, or is older than `OLDEST`.
    """
    if not has_extra(EXTRA):
        raise missing("openvino")
    try:
        with without_conversion_tools():
            import openvino
    except ImportError as error:
        raise DeviceUnavailableError(f"the package openvino does not load ({error}); install it again") from error
    refuse_older(openvino.__version__)
    return openvino


def refuse_older(version: str) -> None:
    """Say that a version computes wrongly what newer ones do not, and what is taken here.

    Raises:
        DeviceUnavailableError: it is older than `OLDEST`.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise DeviceUnavailableError(
            f"openvino {OLDEST[0]}.{OLDEST[1]} or later is needed, since older ones compute some ops wrongly or end "
            f"the process, and {version.split('-')[0]} is here; run: pip install -U openvino"
        )


@memoize(1)
def core() -> Any:
    """The engine of this process, which finds devices and compiles for them; it may be used from many threads.

    Raises:
        DeviceUnavailableError: the package is not there, or its engine does not start.
    """
    with translated("OpenVINO did not start", "install the package openvino again", DeviceUnavailableError):
        return module().Core()


def refuse_forked(device: str) -> None:
    """Say that the engine does not make programs here, where it would wait for ever.

    Raises:
        DeviceLostError: the process was forked from one that had made some.
    """
    if _threads().are_gone:
        raise DeviceLostError(
            "OpenVINO makes no programs in a process that was forked from one where it had made some: its threads are "
            "not there; start processes by spawn, or fork before the device is used",
            device=f"openvino:{device}",
        )


@memoize(1)
def _threads() -> Threads:
    """Those that compile, and read programs."""
    return Threads()


def version() -> str:
    """Version and build of the engine."""
    return str(module().get_version())


def translated(summary: str, advice: str, kind: type[NNAdapterError]) -> AbstractContextManager[None]:
    """Turn whatever the package raises into a `kind`: `summary` failed, its own words, `advice`."""
    return translated_as(summary, advice, kind, brief)


def brief(error: BaseException) -> str:
    """The package's message on one line, without its source positions."""
    return one_line(_NOISE.sub(" ", " ".join(str(error).split())), error)


_TWINS = frozenset(char for char in "bBhHiIlLqQ" if np.dtype(np.dtype(char).str).char != char)
"""Numpy has two types for some integers, alike but for names; the engine refuses the one that ONNX Runtime makes."""


class _Memory:
    """Somebody else's memory, as numpy takes it, which lives as long as this does."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__ = interface
        self._owner = owner


def shareable(array: Array) -> Array:
    """Return the array as the engine takes it for its own.

    Its Python interface refuses what is read-only, although it only reads from inputs and constants. So it gets the
    same memory under an array that does not say so.
    """
    if array.dtype.char not in _TWINS:
        if array.flags.writeable:
            return array
        base = array.base
        if type(base) is np.ndarray and _is_like(base, array):
            return base  # the caller's own array, of which the host gave a view
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))


def _is_like(base: Array, array: Array) -> bool:
    return base.shape == array.shape and base.dtype == array.dtype and bool(base.flags.carray)


class Output(NamedTuple):
    """One output port; its number is its place in the model's outputs."""

    dtype: str
    """As numpy calls it."""
    shape: tuple[int | None, ...]
    """None stands for a size that is not known before the run."""

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape, if all of it is known before the run."""
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None


class Ports(NamedTuple):
    """The ports of a program."""

    inputs: tuple[int | None, ...]
    """For every input of the model, the number of its port; None where the engine needs it not."""
    outputs: tuple[Output, ...]

    def to_dict(self) -> dict[str, Any]:
        """The signature as plain data."""
        return {"inputs": list(self.inputs), "outputs": [[output.dtype, list(output.shape)] for output in self.outputs]}


def ports_from(data: Mapping[str, Any]) -> Ports:
    """Return what `Ports.to_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    inputs = tuple(None if port is None else int(port) for port in data["inputs"])
    shapes = [tuple(None if size is None else int(size) for size in shape) for _, shape in data["outputs"]]
    dtypes = [str(dtype) for dtype, _ in data["outputs"]]
    return Ports(inputs, tuple(map(Output, dtypes, shapes)))


def outputs_of(model: Any) -> tuple[Output, ...]:
    """Return the outputs of one of the engine's models.

    Raises:
        ValueError: a rank is not known.
    """
    return tuple(output_of(port) for port in model.outputs)


def fits(signature: Ports, ports: Sequence[Any], outputs: Sequence[Output]) -> bool:
    """Whether a signature that was read belongs to a program with these input ports and outputs."""
    input_ports = [port for port in signature.inputs if port is not None]
    return sorted(input_ports) == list(range(len(ports))) and signature.outputs == tuple(outputs)


def output_of(port: Any) -> Output:
    """Return one output port.

    Raises:
        ValueError: its rank is not known.
    """
    if port.partial_shape.rank.is_dynamic:
        raise ValueError("the rank of an output is not known before the run")
    sizes = tuple(size.get_length() if size.is_static else None for size in port.partial_shape)
    return Output(dtype_of(port), sizes)


def dtype_of(port: Any) -> str:
    """Return the data type of a port, as numpy calls it."""
    # The engine's boolean is a byte for its own Python interface.
    is_boolean = port.element_type.get_type_name() == "boolean"
    return dtype_name(np.dtype(bool if is_boolean else port.element_type.to_dtype()))
