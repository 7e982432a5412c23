"""`deployment`: a model as an application of Ray Serve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidInputError, InvalidOptionError
from nnadapter.onnx.signature import Signature, read_shapes
from nnadapter.ray.cluster import check_declared, declared, needed, require_ray
from nnadapter.ray.request import read_source, request_of
from nnadapter.ray.serving import protocol
from nnadapter.ray.serving.protocol import NAMES

if TYPE_CHECKING:
    import os

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
    """Return an application for `ray.serve.run`, which answers by the Open Inference Protocol v2 at `/v2`.

    Args:
        model: as `map_batches` takes it.
        devices: as `InferenceSession` takes them.
        options: as `InferenceSession` takes them.
        name: of the model in addresses; that of its file unless it is said.
        max_batch_size: rows of requests that come together and run as one, where the inputs have an axis for them and
            their other sizes are equal.
        batch_wait_s: how long a request waits for others; without it those that came while a run was under way go
            together.
        replicas: sessions, each an actor.
        deadline_s: seconds that a request may take, where it does not say so itself; then it is answered by 504, and
            its run stops where the device can.
        max_queued_requests: requests that may wait at a replica; others are answered by 503.
        max_request_bytes: of a request; longer ones are answered by 413 before they are read.
        input_shapes: see `map_batches`; so are `without_device`, `device_share`, `num_cpus`, `threads` and `folder`.
        without_device: see there.
        device_share: see there.
        num_cpus: see there.
        threads: see there.
        folder: see there.

    Raises:
        MissingExtraError: Ray is not installed.
        InvalidModelError, ModelFileError: the model cannot be read.
        InvalidInputError: it takes or gives something else than tensors of numbers.
        InvalidOptionError: an option does not fit.
        DeviceUnavailableError: no machine has a device, and machines say what they have.
    """
    require_ray("nnadapter.ray.deployment", "ray.serve")
    import ray
    from ray import serve

    from nnadapter.ray.job import Compiler
    from nnadapter.ray.serving.server import Server, Settings

    _check_counts(
        max_batch_size=max_batch_size,
        replicas=replicas,
        max_queued_requests=max_queued_requests,
        bytes=max_request_bytes,
    )
    source = read_source(model)
    _refuse_others(source.signature)
    request = request_of(
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
    needs = needed(request.accelerators, device_share) if not request.allows_cpu and ray.is_initialized() else {}
    cluster = ray.cluster_resources() if needs else {}
    check_declared(needs, cluster)
    compiler = serve.deployment(Compiler, name=f"{settings.name}-compiler", ray_actor_options={"num_cpus": 0})
    server = serve.deployment(
        Server,
        name=settings.name,
        num_replicas=replicas,
        max_ongoing_requests=max_queued_requests + _MORE,
        max_queued_requests=max_queued_requests,
        ray_actor_options={"num_cpus": num_cpus, "resources": needs if declared(cluster) else {}},
    )
    return server.bind(compiler.bind(source.contents, request), request, settings)


_MORE = 64
"""Requests that a replica has beside those that wait: it answers them itself, by 503 or with what it knows."""


def _refuse_others(signature: Signature) -> None:
    for value in (*signature.inputs, *signature.outputs):
        if value.dtype not in NAMES:
            raise InvalidInputError(
                f"{value.name!r} is {value.dtype or 'of no known type'}, and a server has tensors of numbers alone",
                name=value.name,
            )


def _name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOptionError(f"the name of a served model has letters, digits and any of '_.-', got {name!r}")
    return name


def _check_counts(**counts: object) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidOptionError(f"{name} is a whole number of at least 1, got {value!r}")


def _seconds(name: str, value: object, *, least: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < float("inf"):
        raise InvalidOptionError(f"{name} is a number of seconds, got {value!r}")
    return float(value)
