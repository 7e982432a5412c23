"""A server on this machine alone: Ray, Ray Serve and the model's application, from their start to their end."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from nnadapter.errors import DeviceUnavailableError, DriverError, InvalidOptionError
from nnadapter.process.processors import usable
from nnadapter.ray.places import missing_here
from nnadapter.ray.request import read_devices
from nnadapter.ray.serving.application import deployment
from nnadapter.ray.starting import require_ray, start_if_needed

_STORE_BYTES = 512 << 20
_APPLICATION = "nnadapter"
_OURS = re.compile(r"^nnadapter\.errors\.\w+: (.+)$", re.MULTILINE)


@contextmanager
def served(model: Any, *, host: str, port: int, **settings: Any) -> Iterator[str]:
    """Serve a model while the block runs; the address of the model.

    Args:
        model: as `deployment` takes it.
        host: address of this machine that is bound to.
        port: 0 for one that is free.
        **settings: what else `deployment` takes.

    Raises:
        InvalidOptionError: the port cannot be had.
        DeviceUnavailableError: a device is not here.
        DriverError: no replica started.
    """
    _prepare()
    require_ray("nnadapter serve", "ray.serve")
    chosen = free_port(host, port)
    application = deployment(model, **settings)
    _check_devices(settings.get("devices"))
    name = settings.get("name") or application._bound_deployment.name
    folder = tempfile.mkdtemp(prefix="nna-")  # sockets lie in it, whose paths must be short
    try:
        _start(folder, settings.get("replicas", 1))
        yield from _running(application, name, host, chosen)
    finally:
        _stop()
        shutil.rmtree(folder, ignore_errors=True)


def _prepare() -> None:
    """Before Ray is imported: it looks at the environment then.

    Replicas listen on all addresses and run what they are sent, so who asks them has to know a token; it lives as long
    as the server, and in its memory alone.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # addresses of this machine alone
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _check_devices(devices: Any) -> None:
    """Refuse here, where it takes no time, what a replica would."""
    for name, why in missing_here(read_devices(devices, is_compiled=devices is None)).items():
        raise DeviceUnavailableError(f"device {name!r} is not on this machine: {why}")


def _start(folder: str, replicas: int) -> None:
    start_if_needed(
        address="local",  # no other, whoever started one
        num_cpus=max(usable(), replicas) + 1,
        object_store_memory=_STORE_BYTES,
        _temp_dir=folder,
        log_to_driver=False,
        logging_level="error",
    )
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _running(application: Any, name: str, host: str, port: int) -> Iterator[str]:
    from ray import serve

    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(application, name=_APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise DriverError(f"the server did not start: {reason_in(_told(serve.status()))}") from error
    shown = f"[{host}]" if ":" in host else host
    yield f"http://{shown}:{port}/v2/models/{name}"


def _told(status: Any) -> str:
    """What Ray Serve says of an application that did not start."""
    applications = [status.applications[_APPLICATION]] if _APPLICATION in status.applications else []
    deployments = [each for application in applications for each in application.deployments.values()]
    return "\n".join(each.message for each in (*applications, *deployments))


def reason_in(trace: str) -> str:
    """The last sentence of ours in a trace of Ray's, which has what a replica raised as text alone."""
    lines = [line for line in trace.splitlines() if line.strip()] or ["Ray's logs say more"]
    return (_OURS.findall(trace) or lines)[-1].strip()


def _stop() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


def free_port(host: str, port: int) -> int:
    """The port, if nobody has it; a free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
            return int(one.getsockname()[1])
    except OSError as error:
        raise InvalidOptionError(
            f"{host}:{port} cannot be bound to: {error.strerror or error}; choose another port, or 0 for a free one"
        ) from error
