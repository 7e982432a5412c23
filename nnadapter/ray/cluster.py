"""Ray's cluster: its start on this machine, devices as Ray resources, and requests sent to its machines."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NoReturn

from nnadapter.drivers.registry import device_info, devices
from nnadapter.drivers.selection import CPU, HOSTS, named_requests
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    InvalidModelError,
    InvalidOptionError,
    near_names,
)
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.onnx.files import contents_of, load_model
from nnadapter.onnx.signature import Signature, read_signature
from nnadapter.options import Options, default_devices, options_from
from nnadapter.process.packages import missing_extra, require_extra
from nnadapter.process.terminal import deferred_termination

if TYPE_CHECKING:
    import onnx


def require_ray(feature: str, part: str) -> None:
    """Refuse `feature` where Ray, or the part of it that `feature` needs, is missing.

    Args:
        feature: of ours is asked for.
        part: of Ray that it needs, as a module; each takes seconds to import, so no other is.

    Raises:
        MissingExtraError: it is.
    """
    require_extra("ray", feature)
    try:
        import_module(part)
    except ImportError as error:
        raise missing_extra("ray", feature) from error


def start_if_needed(**settings: Any) -> bool:
    """Start Ray on this machine alone, unless this process has one; whether it was started.

    It has no dashboard and reports nothing to anybody; who wants another one starts it before.

    Args:
        **settings: what else `ray.init` is told.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    previous_handler = signal.getsignal(signal.SIGTERM)
    is_new, is_main = not ray.is_initialized(), current_thread() is main_thread()
    with deferred_termination() if is_main else nullcontext():
        try:
            if is_new:
                ray.init(**{"include_dashboard": False, "logging_level": "warning", **settings})
        finally:
            if is_main:
                _handle_sigterm(previous_handler)
    return is_new


def _handle_sigterm(previous_handler: Any) -> None:
    """End a program without a handler for SIGTERM by exit code 143; the handler of Ray aborts with a stack trace."""
    is_rays = getattr(previous_handler, "__module__", "").startswith("ray.")
    signal.signal(signal.SIGTERM, _exit if is_rays or previous_handler in (None, signal.SIG_DFL) else previous_handler)


def _exit(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise SystemExit(128 + number)


PREFIX = "nnadapter:"
"""What names of such resources begin with; then the device, as in `nnadapter:openvino:NPU`."""


def resources() -> dict[str, float]:
    """Return the devices of this machine that accelerate, as resources for `ray start --resources` and `ray.init`.

    Each is there once; how much of it an actor takes is `device_share` of `map_batches`.
    """
    return {f"{PREFIX}{device.name}": 1.0 for device in devices() if device.available and device.name not in HOSTS}


def needed(names: Iterable[str], share: float) -> dict[str, float]:
    """The resources that a session on these devices needs."""
    return {f"{PREFIX}{name}": share for name in names if name not in HOSTS}


def missing_devices(names: Iterable[str]) -> dict[str, str]:
    """Those of these devices that this machine lacks, with the reason of each."""
    return {name: reason for name in names if (reason := _why_missing(name))}


def _why_missing(name: str) -> str:
    try:
        info = device_info(name)
    except DeviceNotFoundError as error:
        return str(error)
    return "" if info.available else info.reason


def declared(cluster: Mapping[str, float]) -> set[str]:
    """The resources of devices that somebody told Ray of."""
    return {name for name in cluster if name.startswith(PREFIX)}


def check_declared(needs: Mapping[str, float], cluster: Mapping[str, float]) -> None:
    """Refuse what no machine of the cluster has, where machines say what they have.

    Raises:
        DeviceUnavailableError: an actor would wait for ever.
    """
    declared_names = declared(cluster)
    for name in needs.keys() - cluster.keys() if declared_names else ():
        device = name.removeprefix(PREFIX)
        raise DeviceUnavailableError(
            f"no machine of the cluster has device {device!r}; they have {', '.join(sorted(declared_names))}. "
            "Start one with "
            f"resource {name!r} (nnadapter.ray.resources() gives it), or allow the CPU by without_device='cpu'"
        )


Model = "str | os.PathLike[str] | bytes | onnx.ModelProto"
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that was read."""

    name: str
    """What reports call it."""
    contents: bytes
    """Empty where there is a path instead."""
    path: str
    """A file that every machine sees, too large for a message."""
    is_compiled: bool
    signature: Signature
    digest: str
    """Of what was read."""


def read_source(model: Any) -> Source:
    """Return a model as it travels.

    Raises:
        InvalidModelError, ModelFileError: it cannot be read.
    """
    path = str(Path(model).absolute()) if isinstance(model, (str, os.PathLike)) else ""
    name = Path(path).name[:_LONGEST_NAME] if path else "model"
    if kind_of(model) is SourceKind.COMPILED:
        contents = model if isinstance(model, bytes) else Path(path).read_bytes()
        return Source(
            name=name, contents=contents, path="", is_compiled=True, signature=CompiledFile(contents).signature,
            digest=sha256(contents).hexdigest(),
        )  # fmt: skip
    message = load_model(path or model)
    try:
        contents, path = contents_of(message), ""
    except InvalidModelError:
        if not path:
            raise
        contents = b""  # weights lie beside the model, and stay there
    digest = sha256(contents or message.SerializeToString(deterministic=True)).hexdigest()
    return Source(
        name=name, contents=contents, path=path, is_compiled=False, signature=_signature(message), digest=digest
    )


def _signature(message: onnx.ModelProto) -> Signature:
    inputs = [value.name for value in message.graph.input]
    constants = (tensor.name for tensor in message.graph.initializer)
    return read_signature(message, inputs, frozenset(constants).intersection(inputs))


WITHOUT = ("error", "cpu")
"""What a machine does that lacks a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A model, where it is to run, and how."""

    name: str
    """Of the model."""
    digest: str
    """Of its contents."""
    signature: Signature
    is_compiled: bool
    path: str
    """Of a model that does not travel; else empty."""
    device_requests: Mapping[str, Mapping[str, Any]]
    """Devices with their options; empty for those of a compiled file."""
    options: Options
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    """That are compiled for; empty for usual ones."""
    allows_cpu: bool
    """A machine without a device runs the model on its CPU."""
    threads: int
    """Of the CPU, and of devices that ask how many; 0 where they decide."""
    folder: str
    """That all machines see, for compiled files; empty where these travel."""

    @property
    def needs_shapes(self) -> bool:
        """Whether nothing says which sizes are compiled for: those of the first rows do."""
        shapes = [value.shape for value in self.signature.inputs]
        is_open = any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)
        return is_open and not self.shapes and not self.is_compiled

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Devices beside the CPU."""
        return tuple(name for name in self.device_requests if name not in HOSTS)

    @property
    def for_running(self) -> Options:
        """What sessions of a compiled file are told: the rest was decided when it was compiled."""
        options = self.options
        return Options(
            fallback=_lacking(options.fallback) if self.allows_cpu else options.fallback,
            max_plans=options.max_plans,
            max_plan_bytes=options.max_plan_bytes,
            deadline_s=options.deadline_s,
            isolate=options.isolate,
        )

    @property
    def for_compiling(self) -> Options:
        """What compiling is told."""
        return replace(self.options, deadline_s=None)


def request_of(
    source: Source,
    *,
    devices: Any,
    options: Any,
    without_device: str,
    threads: int | None,
    num_cpus: float,
    folder: str | os.PathLike[str] | None,
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = (),
) -> Request:
    """Return what is asked for of a model that was read; the rest is as a person says it, see `map_batches`.

    Raises:
        InvalidOptionError: an option does not fit.
    """
    return Request(
        name=source.name,
        digest=source.digest,
        signature=source.signature,
        is_compiled=source.is_compiled,
        path=source.path,
        device_requests=read_devices(devices, is_compiled=source.is_compiled),
        options=read_options(options),
        shapes=shapes,
        allows_cpu=read_without(without_device),
        threads=read_threads(threads, num_cpus),
        folder="" if folder is None else str(Path(folder).absolute()),
    )


def _lacking(fallback: Any) -> Any:
    """A compiled file whose devices are not there goes to the CPU."""
    if isinstance(fallback, str):
        return fallback if fallback == "allow" else {"load": "allow", "compile": fallback, "run": fallback}
    return {**fallback, "load": "allow"}


def read_devices(devices: Any, *, is_compiled: bool) -> dict[str, Mapping[str, Any]]:
    """Return the devices that are asked for, with their options.

    Raises:
        InvalidOptionError: they are no devices.
    """
    if devices is None and is_compiled:
        return {}
    requests = named_requests(default_devices() if devices is None else devices)
    return {name: dict(options) for name, options in requests.items()} or {CPU: {}}


def read_options(options: Any) -> Options:
    """Return options that sessions on many machines can have.

    Raises:
        InvalidOptionError: one does not fit, or is for a single session.
    """
    chosen = options_from(options)
    for name in ("trace", "shadow"):
        if getattr(chosen, name) is not None:
            raise InvalidOptionError(f"option {name!r} is for one session in one process; leave it out here")
    return chosen


def read_without(without_device: str) -> bool:
    """Whether a machine that lacks a device runs the model on its CPU.

    Raises:
        InvalidOptionError: it is none of the words.
    """
    if without_device not in WITHOUT:
        raise InvalidOptionError(
            f"without_device is one of {', '.join(WITHOUT)}, got {without_device!r}"
            f"{near_names(without_device, WITHOUT, '; ')}"
        )
    return without_device == "cpu"


def read_threads(threads: int | None, processors: float) -> int:
    """Return how many threads a session has: as many as its actor has processors, unless somebody says.

    Raises:
        InvalidOptionError: it is no number of threads.
    """
    if threads is None:
        return max(1, int(processors))
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise InvalidOptionError(f"threads is a whole number, 0 where devices are to decide, got {threads!r}")
    return threads
