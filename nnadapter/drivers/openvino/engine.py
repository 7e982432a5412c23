"""Boundary to the package `openvino`: lazy import, translated errors, ports and shared arrays.

The package's conversion tools start a telemetry process, so they are imported only when they are accessed.
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
    """Hide the conversion tools from imports in this thread."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # permanent: other threads may iterate over the list
    _FINDER.threads.add(get_ident())
    try:
        yield
    finally:
        _FINDER.threads.discard(get_ident())


class _Finder:
    def __init__(self) -> None:
        self.threads: set[int] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _TOOLS and get_ident() in self.threads and _is_being_imported():
            vars(sys.modules[_PACKAGE]).setdefault("__getattr__", _offered)
            raise ModuleNotFoundError(f"the import of {name} is postponed until its first use", name=name)


_FINDER = _Finder()
_tools = lazily(_PACKAGE, {_TOOLS: "convert_model"})


def _offered(name: str) -> Any:
    try:
        return _tools(name)
    except ImportError as error:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}: {error}") from error


def _is_being_imported() -> bool:
    spec = getattr(sys.modules.get(_PACKAGE), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


EXTRA = "openvino"
PRECISIONS = {"float32": ("FP32", "f32"), "float16": ("FP16", "f16"), "bfloat16": ("BF16", "bf16")}
"""Precision -> the engine's ability and data type."""
OLDEST = (2026, 0)
"""Oldest version that passes `tests/drivers/openvino/sweep`."""
_NOISE = re.compile(r"Exception from \S+?:\d+:|Check '.*?' failed at \S+?:\d+:|\(None\)")


def missing(device: str) -> MissingExtraError:
    """Return the error for a device if the package `openvino` is not installed."""
    return missing_extra(EXTRA, f"device {device!r}", MissingDeviceExtraError)


@memoize(1)
def module() -> Any:
    """Import and return the package.

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
    """Raise DeviceUnavailableError for versions before `OLDEST`, which compute some ops wrongly."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise DeviceUnavailableError(
            f"openvino {OLDEST[0]}.{OLDEST[1]} or later is required, because older versions compute some ops "
            f"wrongly or crash the process; got {version.split('-')[0]}; run: pip install -U openvino"
        )


@memoize(1)
def core() -> Any:
    """Return OpenVINO's `Core` of this process. Thread-safe."""
    with translated("OpenVINO did not start", "install the package openvino again", DeviceUnavailableError):
        return module().Core()


def refuse_forked(device: str) -> None:
    """Raise DeviceLostError in a fork of a process that compiled programs; compiling would hang."""
    if _threads().are_gone:
        raise DeviceLostError(
            "OpenVINO cannot compile programs in a process that was forked after a compilation: its threads are gone; "
            "start processes by spawn, or fork before the device is used",
            device=f"openvino:{device}",
        )


@memoize(1)
def _threads() -> Threads:
    return Threads()


def default_precision(device: str = "CPU") -> str | None:
    """Return the precision in which a device computes by default; None if unknown."""
    try:
        hint = core().get_property(device, "INFERENCE_PRECISION_HINT").get_type_name()
    except Exception:  # noqa: BLE001  devices without this property
        return None
    return next((name for name, (_, data_type) in PRECISIONS.items() if data_type == hint), None)


def version() -> str:
    """Return the engine's version and build."""
    return str(module().get_version())


def translated(summary: str, advice: str, kind: type[NNAdapterError]) -> AbstractContextManager[None]:
    """Translate exceptions of the package into `kind`."""
    return translated_as(summary, advice, kind, brief)


def brief(error: BaseException) -> str:
    """Return the package's message on one line, without source positions."""
    return one_line(_NOISE.sub(" ", " ".join(str(error).split())), error)


_TWINS = frozenset(char for char in "bBhHiIlLqQ" if np.dtype(np.dtype(char).str).char != char)
"""Type characters of integers for which numpy prefers another character of equal size."""


class _Memory:
    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__ = interface
        self._owner = owner


def shareable(array: Array) -> Array:
    """Return a writable view of an array, as the engine's Python interface requires."""
    if array.dtype.char not in _TWINS:
        if array.flags.writeable:
            return array
        base = array.base
        if type(base) is np.ndarray and _is_like(base, array):
            return base  # the caller's array, viewed by the host
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))


def _is_like(base: Array, array: Array) -> bool:
    return base.shape == array.shape and base.dtype == array.dtype and bool(base.flags.carray)


class Output(NamedTuple):
    """Data type and shape of an output port."""

    dtype: str
    shape: tuple[int | None, ...]
    """None is a size that is unknown before the run."""

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None


class Ports(NamedTuple):
    """Ports of a program, in the ONNX model's order."""

    inputs: tuple[int | None, ...]
    """Port of every input; None if dropped by the engine."""
    outputs: tuple[Output, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"inputs": list(self.inputs), "outputs": [[output.dtype, list(output.shape)] for output in self.outputs]}


def ports_from(data: Mapping[str, Any]) -> Ports:
    """Parse `Ports.to_dict`; raise KeyError, TypeError or ValueError if it is malformed."""
    inputs = tuple(None if port is None else int(port) for port in data["inputs"])
    shapes = [tuple(None if size is None else int(size) for size in shape) for _, shape in data["outputs"]]
    dtypes = [str(dtype) for dtype, _ in data["outputs"]]
    return Ports(inputs, tuple(map(Output, dtypes, shapes)))


def outputs_of(model: Any) -> tuple[Output, ...]:
    """Return the outputs of a model; raise ValueError for an unknown rank."""
    return tuple(output_of(port) for port in model.outputs)


def fits(signature: Ports, ports: Sequence[Any], outputs: Sequence[Output]) -> bool:
    """Check whether a signature matches a program's ports."""
    input_ports = [port for port in signature.inputs if port is not None]
    return sorted(input_ports) == list(range(len(ports))) and signature.outputs == tuple(outputs)


def output_of(port: Any) -> Output:
    """Return an output port; raise ValueError if its rank is unknown."""
    if port.partial_shape.rank.is_dynamic:
        raise ValueError("the rank of an output is not known before the run")
    sizes = tuple(size.get_length() if size.is_static else None for size in port.partial_shape)
    return Output(dtype_of(port), sizes)


def dtype_of(port: Any) -> str:
    """Return the numpy name of a port's data type."""
    # Booleans are bytes in the Python interface.
    is_boolean = port.element_type.get_type_name() == "boolean"
    return dtype_name(np.dtype(bool if is_boolean else port.element_type.to_dtype()))
