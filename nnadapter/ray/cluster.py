"""Ray's cluster: local start, devices as Ray resources, and requests to its machines."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, NoReturn

from nnadapter import errors
from nnadapter.drivers.registry import device_info, device_of, devices
from nnadapter.drivers.selection import CPU, HOSTS, named_requests
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.onnx.files import contents_of, load_model
from nnadapter.onnx.signature import Signature, read_signature
from nnadapter.options import Options, default_devices, options_from
from nnadapter.process.packages import missing_extra, require_extra
from nnadapter.process.terminal import deferred_termination
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    import onnx


def require_ray(feature: str, part: str) -> None:
    """Check that Ray and its module `part` are installed. Raises MissingExtraError."""
    require_extra("ray", feature)
    try:
        import_module(part)
    except ImportError as error:
        raise missing_extra("ray", feature) from error


def start_if_needed(**settings: Any) -> bool:
    """Start Ray on this machine without a dashboard, unless it is initialized; return True if started.

    `settings` are passed to `ray.init`.
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
    """Install a handler that exits with code 143 on SIGTERM; Ray's handler aborts with a stack trace."""
    is_rays = getattr(previous_handler, "__module__", "").startswith("ray.")
    signal.signal(signal.SIGTERM, _exit if is_rays or previous_handler in (None, signal.SIG_DFL) else previous_handler)


def _exit(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
    raise SystemExit(128 + number)


PREFIX = "nnadapter:"
"""Prefix of Ray resources for devices, as in `nnadapter:openvino:NPU`."""


def resources() -> dict[str, float]:
    """Return this machine's accelerators, one of each, as resources for `ray start --resources` and `ray.init`."""
    return {f"{PREFIX}{device.name}": 1.0 for device in devices() if device.available and device.name not in HOSTS}


def needed(names: Iterable[str], share: float) -> dict[str, float]:
    """Return the Ray resources that a session reserves: `share` of each device except hosts."""
    return {f"{PREFIX}{device_of(name)}": share for name in names if name not in HOSTS}


def missing_devices(names: Iterable[str]) -> dict[str, str]:
    """Return the devices that this machine lacks, with reasons."""
    return {name: reason for name in names if (reason := _why_missing(name))}


def _why_missing(name: str) -> str:
    try:
        info = device_info(name)
    except errors.DeviceNotFoundError as error:
        return str(error)
    return "" if info.available else info.reason


def declared(cluster: Mapping[str, float]) -> set[str]:
    """Return the names of device resources in a cluster."""
    return {name for name in cluster if name.startswith(PREFIX)}


def check_declared(needs: Mapping[str, float], cluster: Mapping[str, float]) -> None:
    """Raise DeviceUnavailableError if an actor would wait forever for an undeclared device."""
    declared_names = declared(cluster)
    for name in needs.keys() - cluster.keys() if declared_names else ():
        device = name.removeprefix(PREFIX)
        raise errors.DeviceUnavailableError(
            f"no machine of the cluster has device {device!r}; they have {', '.join(sorted(declared_names))}. "
            "Start one with "
            f"resource {name!r} (nnadapter.ray.resources() gives it), or allow the CPU by without_device='cpu'"
        )


_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Model in the form sent to machines."""

    name: str
    contents: bytes
    path: str
    """Shared file of a model that is too large for a message."""
    is_compiled: bool
    signature: Signature
    digest: str


def read_source(model: Any) -> Source:
    """Read a model. Raises InvalidModelError and ModelFileError."""
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
    except errors.InvalidModelError:
        if not path:
            raise
        contents = b""  # weights stay next to the model
    digest = sha256(contents or message.SerializeToString(deterministic=True)).hexdigest()
    return Source(
        name=name, contents=contents, path=path, is_compiled=False, signature=_signature(message), digest=digest
    )


def _signature(message: onnx.ModelProto) -> Signature:
    inputs = [value.name for value in message.graph.input]
    constants = (tensor.name for tensor in message.graph.initializer)
    return read_signature(message, inputs, frozenset(constants).intersection(inputs))


WITHOUT = ("error", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Model, devices, and options of a job."""

    name: str
    digest: str
    signature: Signature
    is_compiled: bool
    path: str
    device_requests: Mapping[str, Mapping[str, Any]]
    """Device -> options; empty for the devices of a compiled file."""
    options: Options
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    allows_cpu: bool
    threads: int
    """Threads of sessions; 0 to let devices decide."""
    folder: str
    """Shared folder for compiled files; empty to send them."""

    @property
    def needs_shapes(self) -> bool:
        """True if the model is compiled for the shapes of the first rows."""
        return self.has_dynamic_inputs and not self.shapes and not self.is_compiled

    @property
    def has_dynamic_inputs(self) -> bool:
        shapes = [value.shape for value in self.signature.inputs]
        return any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(name for name in self.device_requests if name not in HOSTS)

    @property
    def for_running(self) -> Options:
        """Options that still apply to a compiled file."""
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
    """Return a request from arguments of `map_batches`. Raises InvalidOptionError."""
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
    """Return the fallback policy, changed so that machines without a compiled file's devices run it on the CPU."""
    if isinstance(fallback, str):
        return fallback if fallback == "allow" else {"load": "allow", "compile": fallback, "run": fallback}
    return {**fallback, "load": "allow"}


def read_devices(devices: Any, *, is_compiled: bool) -> dict[str, Mapping[str, Any]]:
    """Return the requested devices with their options. Raises InvalidOptionError."""
    if devices is None and is_compiled:
        return {}
    requests = named_requests(default_devices() if devices is None else devices)
    return {name: dict(options) for name, options in requests.items()} or {CPU: {}}


def read_options(options: Any) -> Options:
    """Return session options. Raises InvalidOptionError, also for `trace` and `shadow`, which need a single session."""
    chosen = options_from(options)
    for name in ("trace", "shadow"):
        if getattr(chosen, name) is not None:
            raise errors.InvalidOptionError(f"option {name!r} applies to a single session; remove it here")
    return chosen


def read_without(without_device: str) -> bool:
    """Return True if machines without a device use the CPU. Raises InvalidOptionError."""
    if without_device not in WITHOUT:
        raise errors.InvalidOptionError(
            f"without_device must be one of {', '.join(WITHOUT)}, got {without_device!r}"
            f"{errors.near_names(without_device, WITHOUT, '; ')}"
        )
    return without_device == "cpu"


def is_count(value: object) -> bool:
    """Return True for an integer of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_counts(**counts: object) -> None:
    """Raise InvalidOptionError unless every argument is an integer of at least 1."""
    for name, value in counts.items():
        if not is_count(value):
            raise errors.InvalidOptionError(f"{name} must be an integer of at least 1, got {value!r}")


def each_once(shape_sets: Iterable[Mapping[str, tuple[int, ...]]]) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    """Return distinct sets of shapes, in order."""
    distinct: list[Mapping[str, tuple[int, ...]]] = []
    for shapes in shape_sets:
        if shapes not in distinct:
            distinct.append(shapes)
    return tuple(distinct)


def read_threads(threads: int | None, processors: float) -> int:
    """Return the threads of a session, by default the processors. Raises InvalidOptionError."""
    if threads is None:
        return max(1, int(processors))
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise errors.InvalidOptionError(f"threads must be an integer, 0 to let devices decide, got {threads!r}")
    return threads
