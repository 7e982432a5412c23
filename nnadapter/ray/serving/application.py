"""`deployment` of a model as an application of Ray Serve, and a local server."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import nnadapter.ray.cluster as cluster
from nnadapter import errors
from nnadapter.onnx.signature import Signature, read_shapes
from nnadapter.process.processors import usable
from nnadapter.process.terminal import block_signals, collected_signals
from nnadapter.ray.serving import protocol
from nnadapter.ray.serving.protocol import NAMES

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.selection import DeviceRequest
    from nnadapter.options import Options


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def deployment(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    name: str | None = None,
    max_batch_size: int = 32,
    batch_wait_s: float = 0.0,
    replicas: int = 1,
    deadline_s: float | None = None,
    max_queued_requests: int = 256,
    max_request_bytes: int = protocol.BODY_BYTES,
    input_shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    without_device: str = "error",
    device_share: float = 0.01,
    num_cpus: float = 1,
    threads: int | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Any:
    """Return an application for `ray.serve.run` that serves the Open Inference Protocol v2 at `/v2`.

    Args:
        model: as for `map_batches`.
        devices: as for `InferenceSession`.
        options: as for `InferenceSession`.
        name: name of the model in URLs; by default the stem of its file.
        max_batch_size: maximum rows of concurrent requests that run together. Their inputs must have an axis of rows,
            and the same sizes in all other axes.
        batch_wait_s: time that a request waits for others. With 0, requests that arrive during a run form the next run.
        replicas: number of sessions, each in an actor.
        deadline_s: default time limit of a request; after it, the response is 504.
        max_queued_requests: maximum queued requests of a replica; further requests get 503.
        max_request_bytes: maximum bytes of a request; larger requests get 413.
        input_shapes: see `map_batches`.
        without_device: see `map_batches`.
        device_share: see `map_batches`.
        num_cpus: see `map_batches`.
        threads: see `map_batches`.
        folder: see `map_batches`.

    Raises:
        MissingExtraError: Ray is not installed.
        InvalidModelError, ModelFileError: the model cannot be read.
        InvalidInputError: an input or output is not a numeric tensor.
        InvalidOptionError: an option is invalid.
        DeviceUnavailableError: machines declare their devices, and none has the requested one.
    """
    cluster.require_ray("nnadapter.ray.deployment", "ray.serve")
    import ray
    from ray import serve

    from nnadapter.ray.job import Compiler
    from nnadapter.ray.serving.server import Server, Settings

    cluster.check_counts(
        max_batch_size=max_batch_size,
        replicas=replicas,
        max_queued_requests=max_queued_requests,
        bytes=max_request_bytes,
    )
    source = cluster.read_source(model)
    _refuse_others(source.signature)
    request = cluster.request_of(
        source,
        devices=devices,
        options=options,
        shapes=() if input_shapes is None else tuple(read_shapes(input_shapes)),
        without_device=without_device,
        threads=threads,
        num_cpus=num_cpus,
        folder=folder,
    )
    settings = Settings(
        name=_name(Path(source.name).stem if name is None else name),
        max_batch_size=max_batch_size,
        batch_wait_s=_seconds("batch_wait_s", batch_wait_s, least=0.0),
        deadline_s=None if deadline_s is None else _seconds("deadline_s", deadline_s, least=1e-6),
        max_queued_requests=max_queued_requests,
        max_request_bytes=max_request_bytes,
    )
    needs = (
        cluster.needed(request.accelerators, device_share) if not request.allows_cpu and ray.is_initialized() else {}
    )
    available = ray.cluster_resources() if needs else {}
    cluster.check_declared(needs, available)
    compiler = serve.deployment(Compiler, name=f"{settings.name}-compiler", ray_actor_options={"num_cpus": 0})
    server = serve.deployment(
        Server,
        name=settings.name,
        num_replicas=replicas,
        max_ongoing_requests=max_queued_requests + _MORE,
        max_queued_requests=max_queued_requests,
        ray_actor_options={"num_cpus": num_cpus, "resources": needs if cluster.declared(available) else {}},
    )
    return server.bind(compiler.bind(source.contents, request), request, settings)


_MORE = 64


def _refuse_others(signature: Signature) -> None:
    for value in (*signature.inputs, *signature.outputs):
        if value.dtype not in NAMES:
            raise errors.InvalidInputError(
                f"{value.name!r} is {value.dtype or 'of no known type'}, but a server supports numeric tensors only",
                name=value.name,
            )


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise errors.InvalidOptionError(f"a served model's name may have only letters, digits and '_.-', got {name!r}")
    return name


def _seconds(name: str, value: object, *, least: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < float("inf"):
        raise errors.InvalidOptionError(f"{name} must be a number of seconds, got {value!r}")
    return float(value)


DRAIN_S = 20.0
"""Seconds for pending requests after a signal; less than Kubernetes allows by default (30 s)."""
_TICK_S = 0.01
_SAME_S = 0.1
_KILL_S = 5.0
_SET_CHILD_SUBREAPER = 36
_PROXY = "SERVE_PROXY_ACTOR"
_STORE_BYTES = 512 << 20
_APPLICATION = "nnadapter"
_OURS = re.compile(r"^nnadapter\.errors\.\w+: (.+)$", re.MULTILINE)


def serve_until_stopped(model: Any, *, host: str, port: int, on_ready: Callable[[str], None], **settings: Any) -> int:
    """Serve a model until a signal. Return 0 after a regular shutdown, otherwise the number of the last signal.

    The first signal closes the port and waits for pending requests, for `DRAIN_S` or `deadline_s`, whichever is longer.
    A second signal, or a signal before the server is ready, ends the server at once. All processes of Ray are killed,
    so the caller must exit. `on_ready` is called with the model's URL.

    Raises:
        InvalidOptionError: the port is not available.
        DeviceUnavailableError: a device is missing.
        DriverError: no replica started.
    """
    _prepare()
    cluster.require_ray("nnadapter serve", "ray.serve")
    import ray  # noqa: F401  it includes psutil
    from psutil import Process

    chosen = free_port(host, port)
    application = deployment(model, **settings)
    _check_devices(settings.get("devices"))
    name = settings.get("name") or application._bound_deployment.name
    process = Process()
    initial_children = set(process.children(recursive=True))
    _adopt_orphans()
    with collected_signals() as next_signal:
        folder = tempfile.mkdtemp(prefix="nna-")  # socket paths must be short
        started, stop, drained = Future[str](), Event(), Future[None]()

        def live() -> None:
            """Start Ray, drain it after `stop` is set, and wait forever.

            Linux kills processes whose starting thread ends. Ray's processes inherit blocked signals, so that a signal
            to the process group reaches only this process.
            """
            block_signals()
            try:
                _start(folder, settings.get("replicas", 1))
                started.set_result(_running(application, name, host, chosen))
            except BaseException as error:  # noqa: BLE001  raised in the main thread
                _stop()
                started.set_exception(error)
                return
            stop.wait()
            _drain(max(DRAIN_S, settings.get("deadline_s") or 0.0))
            drained.set_result(None)
            Event().wait()

        def until(future: Future[Any]) -> int:
            while not (number := next_signal()) and not future.done():
                time.sleep(_TICK_S)
            return number

        try:
            Thread(target=live, name="nnadapter server", daemon=True).start()
            cut = until(started)
            if not cut:
                on_ready(started.result())
                until(Future())
                stop.set()
                begun = time.monotonic()
                while (cut := until(drained)) and time.monotonic() < begun + _SAME_S:
                    pass  # a signal to process and group counts once
            return cut
        finally:
            _kill_children(process, initial_children)
            shutil.rmtree(folder, ignore_errors=True)


def _adopt_orphans() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_children(process: Any, excluded_processes: Set[Any]) -> None:
    from psutil import NoSuchProcess, wait_procs

    until = time.monotonic() + _KILL_S
    while (children := set(process.children(recursive=True)) - excluded_processes) and time.monotonic() < until:
        for child in children:
            with suppress(NoSuchProcess):
                child.kill()
        wait_procs(list(children), _TICK_S)


def _drain(seconds: float) -> None:
    import ray

    until = time.monotonic() + seconds
    try:
        proxies = _proxies()
        ray.get([proxy.__ray_call__.remote(close_port) for proxy in proxies], timeout=seconds)
        while connection_count := sum(
            ray.get([http_proxy.__ray_call__.remote(count_connections) for http_proxy in proxies], timeout=seconds)
        ):
            if time.monotonic() > until:
                cut = f"no answer within {seconds:g} s: {connection_count} connections were closed"
                warnings.warn(errors.DriverWarning(cut), stacklevel=2)
                break
            time.sleep(_TICK_S)
    except Exception as error:  # noqa: BLE001  the server ends anyway
        warnings.warn(
            errors.DriverWarning(f"pending requests were not awaited: {errors.describe(error)}"), stacklevel=2
        )


def _proxies() -> list[Any]:
    import ray

    actors = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(**actor) for actor in actors if _PROXY in actor["name"]]


def close_port(proxy: Any) -> None:
    """Close the port and idle connections; called in the proxy's process."""
    for server in _http_servers():
        server.should_exit = True


def count_connections(proxy: Any) -> int:
    """Count open connections; called in the proxy's process."""
    return sum(len(server.server_state.connections) for server in _http_servers())


def _http_servers() -> list[Any]:
    global _servers
    if not _servers:
        from uvicorn import Server

        _servers = [instance for instance in gc.get_objects() if isinstance(instance, Server)]
    return _servers


_servers: list[Any] = []


def _prepare() -> None:
    """Set environment variables of Ray. Without a token, replicas would execute messages from any sender."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # local addresses only
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _check_devices(devices: Any) -> None:
    for name, reason in cluster.missing_devices(cluster.read_devices(devices, is_compiled=devices is None)).items():
        raise errors.DeviceUnavailableError(f"device {name!r} is not on this machine: {reason}")


def _start(folder: str, replicas: int) -> None:
    cluster.start_if_needed(
        address="local",  # never join a running cluster
        num_cpus=max(usable(), replicas) + 1,
        object_store_memory=_STORE_BYTES,
        _temp_dir=folder,
        log_to_driver=False,
        logging_level="error",
    )
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _running(application: Any, name: str, host: str, port: int) -> str:
    import ray
    from ray import serve

    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application, name=_APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise errors.DriverError(f"the server did not start: {reason_in(_status_messages(serve.status()))}") from error
    shown = f"[{host}]" if ":" in host else host
    # imports this module in the proxies
    ray.get([proxy.__ray_call__.remote(count_connections) for proxy in _proxies()])
    return f"http://{shown}:{port}/v2/models/{name}"


def _status_messages(status: Any) -> str:
    applications = [status.applications[_APPLICATION]] if _APPLICATION in status.applications else []
    deployments = [
        deployment_status for application in applications for deployment_status in application.deployments.values()
    ]
    return "\n".join(component.message for component in (*applications, *deployments))


def reason_in(trace: str) -> str:
    """Return nnadapter's last error in a trace, since Ray has only text."""
    lines = [line for line in trace.splitlines() if line.strip()] or ["Ray's logs say more"]
    return (_OURS.findall(trace) or lines)[-1].strip()


def _stop() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


def free_port(host: str, port: int) -> int:
    """Return the port if available; for 0, a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise errors.InvalidOptionError(
            f"{host}:{port} cannot be bound to: {error.strerror or error}; choose another port, or 0 for a free one"
        ) from error
