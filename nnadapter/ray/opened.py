"""A session in an actor: the kind of its machine, what was compiled for that, and the session that was made of it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.errors import CompiledModelError, NNAdapterError
from nnadapter.inference.session import InferenceSession
from nnadapter.ray.compiled import file_name, session_folder, sizes_in, written
from nnadapter.ray.job import SessionRecord
from nnadapter.ray.kinds import Kind, local_kind
from nnadapter.ray.request import Request
from nnadapter.ray.sessions import session_options

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What an actor has."""

    session: InferenceSession
    kind: Kind
    fixed: int | None
    """Rows of a run, where the compiled file is for one number of them and the model leaves it open."""
    machine: str
    """Ray's name of the node."""
    record: SessionRecord


def open_actor_session(job: Any, request: Request, shapes: Any = None) -> Opened:
    """Make the session of an actor.

    Args:
        job: the handle of the job's actor.
        request: what was asked for.
        shapes: that are compiled for, where the request says none.

    Raises:
        NNAdapterError: as `nnadapter.compile` and `InferenceSession` do.
    """
    import ray

    kind, node = kind_of(request)
    reference, path = called(job.compiled.remote(kind, node, shapes))
    opened = open_file(path or local_file(ray.get(reference), kind, request), kind, request)
    ray.get(job.began.remote(opened.record))
    return opened


def kind_of(request: Request) -> tuple[Kind, str]:
    """The kind of this machine, and Ray's name of it.

    Raises:
        DeviceUnavailableError: a device is not here, and the CPU is not allowed.
    """
    import ray

    kind = local_kind(request.wanted, allows_cpu=request.allows_cpu, threads=request.threads)
    return kind, ray.get_runtime_context().get_node_id()


def local_file(contents: Any, kind: Kind, request: Request) -> str:
    """Return the path of a compiled file on this machine, which is written by the first who needs it.

    Raises:
        CompiledModelError: it cannot be written.
    """
    name = request.digest[:_SHOWN] if request.is_compiled else file_name(kind, request)
    try:
        return str(written(np.asarray(contents), name, session_folder()))
    except OSError as error:
        raise CompiledModelError(
            f"the compiled file cannot be written on this machine: {error.strerror or error}; give a folder that all "
            "machines see, by folder=",
            file=name,
        ) from error


def open_file(path: str, kind: Kind, request: Request) -> Opened:
    """Make a session of a compiled file.

    Raises:
        NNAdapterError: as `InferenceSession` does.
    """
    import ray

    context, started = ray.get_runtime_context(), perf_counter()
    node = context.get_node_id()
    compiled_rows = sizes_in(CompiledFile(path), [value.name for value in request.signature.inputs])
    session = InferenceSession(path, sess_options=session_options(request.threads), options=request.for_running)
    record = SessionRecord(
        actor=str(context.get_actor_id()),
        machine=node,
        address=socket.gethostname(),
        kind=kind.name,
        devices=session.devices,
        seconds=perf_counter() - started,
    )
    return Opened(session=session, kind=kind, fixed=compiled_rows, machine=node, record=record)


def called(reference: Any) -> Any:
    """The result of a call of an actor; what it raised of ours as it was, without Ray's own trace around it.

    Raises:
        NNAdapterError: the call did.
    """
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, NNAdapterError):
            raise cause from None
        raise
