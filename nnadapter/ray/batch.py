"""`map_batches` runs a model over a Ray Dataset; `report` reports on it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature as signature_of
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

import nnadapter.ray.cluster as cluster
from nnadapter.errors import InvalidOptionError
from nnadapter.onnx.signature import Signature, read_shapes
from nnadapter.ray.actors import Mapped, Worker
from nnadapter.ray.job import Job
from nnadapter.ray.job_report import JobReport, job_report
from nnadapter.ray.rows import (
    ColumnType,
    check_names,
    check_outputs,
    check_types,
    columns_by_input,
    known_rows,
    rows_at_once,
    types_of,
)
from nnadapter.records import replace

if TYPE_CHECKING:
    import os

    import onnx
    import ray.data

    from nnadapter.drivers.selection import DeviceRequest
    from nnadapter.options import Options

_TASKS_AT_ONCE = 2
_jobs: WeakKeyDictionary[Any, tuple[Any, cluster.Request]] = WeakKeyDictionary()


def map_batches(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    outputs: Sequence[str] | None = None,
    passthrough_columns: Sequence[str] = (),
    batch_size: int = 64,
    concurrency: int | tuple[int, int] = 1,
    input_shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    without_device: str = "error",
    device_share: float = 0.01,
    num_cpus: float = 1,
    threads: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    **ray_remote_args: Any,
) -> ray.data.Dataset:
    """Run a model over a dataset, on the machines of a Ray cluster; see `report`.

    Args:
        dataset: a Ray Dataset, computed when the result is consumed.
        model: an ONNX file (path or contents), ModelProto or compiled file. It is compiled once per kind of machine.
        devices: as for `InferenceSession`.
        options: as for `InferenceSession`.
        columns: input -> column; by default the columns of the same names.
        outputs: outputs that become columns; all by default.
        passthrough_columns: columns that are copied to the result.
        batch_size: rows per run, if the inputs have an axis of rows.
        concurrency: number of actors, each with one session, or (fewest, most).
        input_shapes: shapes to compile for; by default the rows' shapes; see `nnadapter.compile`.
        without_device: behavior of a machine without a device: `error`, or `cpu` to run on its CPU.
        device_share: share of a device that an actor reserves, if machines declare their devices (`resources`).
        num_cpus: processors that an actor reserves.
        threads: threads of a session; `num_cpus` by default, 0 to let devices decide.
        folder: shared folder that stores compiled files. Its programs are executed: protect it like code.
        **ray_remote_args: other arguments of `dataset.map_batches` for actors.

    Raises:
        MissingExtraError: Ray is not installed.
        InvalidModelError, ModelFileError: the model cannot be read.
        InvalidInputError, InputTypeError, MissingInputError: columns do not fit the model. Errors found in rows, in
            compiling or in running are raised on consuming the result.
        InvalidOptionError: an option is invalid.
        DeviceUnavailableError: machines declare their devices, and none has the requested one.
    """
    cluster.require_ray("nnadapter.ray.map_batches", "ray.data")
    import ray
    from ray.data import ActorPoolStrategy

    _check_counts(batch_size, concurrency, device_share)
    source = cluster.read_source(model)
    passthrough_columns = (passthrough_columns,) if isinstance(passthrough_columns, str) else tuple(passthrough_columns)
    mapped = Mapped(
        columns=columns_by_input(source.signature, columns),
        outputs=check_outputs(source.signature, outputs, passthrough_columns),
        passthrough_columns=passthrough_columns,
        batch_size=batch_size,
    )
    base_request = cluster.request_of(  # invalid options raise before Ray is started
        source,
        devices=devices,
        options=options,
        without_device=without_device,
        threads=threads,
        num_cpus=num_cpus,
        folder=folder,
    )
    cluster.start_if_needed()
    column_types = _known_types(dataset, mapped, source.signature)
    request = replace(
        base_request, shapes=_shapes(source.signature, mapped.columns, column_types, batch_size, input_shapes)
    )
    _warn_of_processors(dataset, concurrency, num_cpus)
    placed = _placing(dataset, request, num_cpus, device_share)
    contents = [ray.put(np.frombuffer(source.contents, np.uint8))]
    job = _job_actor(contents, request)
    mapped_dataset = dataset.map_batches(
        Worker,
        batch_size=rows_at_once(
            source.signature,
            mapped.columns,
            mapped.outputs,
            batch_size=batch_size,
            rows=known_rows(dataset),
            actors=_most(concurrency),
        ),
        batch_format="numpy",
        compute=_pool(ActorPoolStrategy, concurrency),
        fn_constructor_args=(job, request, mapped),
        udf_modifying_row_count=False,
        **{**placed, **ray_remote_args},
    )
    mapped_dataset.context.raise_original_map_exception = True  # raise errors without Ray's wrapper
    _jobs[mapped_dataset] = job, request
    return mapped_dataset


def report(dataset: ray.data.Dataset) -> JobReport:
    """Report on the rows of a `map_batches` dataset that have run. Raises InvalidOptionError for other datasets."""
    job_entry = _jobs.get(dataset)
    if job_entry is None:
        raise InvalidOptionError("report needs the dataset that nnadapter.ray.map_batches returned")
    import ray

    job, request = job_entry
    return job_report(request, ray.get(job.snapshot.remote()))


def _check_counts(batch_size: object, concurrency: object, share: object) -> None:
    cluster.check_counts(batch_size=batch_size)
    both = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    if len(both) != 2 or not all(map(cluster.is_count, both)) or both[0] > both[1]:
        raise InvalidOptionError(f"concurrency must be a number of actors, or (fewest, most), got {concurrency!r}")
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share <= 1:
        raise InvalidOptionError(f"device_share must be above 0 and at most 1, got {share!r}")


def _most(concurrency: int | tuple[int, int]) -> int:
    return concurrency if isinstance(concurrency, int) else concurrency[1]


def _known_types(dataset: Any, mapped: Mapped, signature: Signature) -> dict[str, ColumnType]:
    schema = dataset.schema(fetch_if_missing=False)
    if schema is None:
        return {}
    check_names(mapped.columns, mapped.passthrough_columns, schema.names)
    column_types = types_of(schema)
    check_types(signature, mapped.columns, column_types)
    return column_types


def _shapes(
    signature: Signature,
    columns: Mapping[str, str],
    column_types: Mapping[str, Any],
    batch_size: int,
    input_shapes: Any,
) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    if input_shapes is not None:
        return tuple(read_shapes(input_shapes))
    sets = [
        _shapes_of(signature, columns, column_types, rows) for rows in (1, batch_size)
    ]  # a last batch may be as short
    return cluster.each_once(filter(None, sets))


def _shapes_of(
    signature: Signature, columns: Mapping[str, str], column_types: Mapping[str, Any], rows: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, column in columns.items():
        shape = signature.by_name[name].shape
        row = column_types[column].shape if column in column_types else None
        if shape is None or not shape:
            return {}
        first = shape[0] if isinstance(shape[0], int) else rows
        if row is not None:
            full_shape = (first, *row) if len(row) < len(shape) else row
        elif all(isinstance(size, int) for size in shape[1:]):
            full_shape = (first, *shape[1:])
        else:
            return {}
        shapes[name] = tuple(full_shape)
    return shapes


def _warn_of_processors(dataset: Any, concurrency: int | tuple[int, int], num_cpus: float) -> None:
    import ray
    from ray.data.dataset import MaterializedDataset

    fewest = concurrency if isinstance(concurrency, int) else concurrency[0]
    required_cpus, total_cpus = fewest * num_cpus, ray.cluster_resources().get("CPU", 0.0)
    if required_cpus > total_cpus or (required_cpus == total_cpus and not isinstance(dataset, MaterializedDataset)):
        warnings.warn(
            f"{fewest} actors of {num_cpus} CPU reserve all {total_cpus:g} of Ray, so no task can read the data until "
            "machines are added; request fewer actors, or fewer CPUs by num_cpus=",
            stacklevel=3,
        )


def _placing(dataset: Any, request: cluster.Request, num_cpus: float, share: float) -> dict[str, Any]:
    import ray

    needs, available = cluster.needed(request.accelerators, share), ray.cluster_resources()
    has_devices = bool(cluster.declared(available))
    if not needs or not has_devices:
        return {"num_cpus": num_cpus}
    if not request.allows_cpu:
        cluster.check_declared(needs, available)
        return {"num_cpus": num_cpus, "resources": needs}
    # Only this argument of Ray expresses a preference for resources. Ray 2.64 removes it: actors are then placed
    # freely.
    if "ray_remote_args_fn" not in signature_of(dataset.map_batches).parameters:
        return {"num_cpus": num_cpus}
    return {"num_cpus": num_cpus, "ray_remote_args_fn": partial(_where_there_is_room, needs)}


def _where_there_is_room(needs: Mapping[str, float]) -> dict[str, Any]:
    """Return Ray's argument that reserves `needs` for an actor, or nothing if they are not available."""
    import ray

    free = ray.available_resources()
    return {"resources": dict(needs)} if all(free.get(name, 0.0) >= share for name, share in needs.items()) else {}


def _pool(strategy: Any, concurrency: int | tuple[int, int]) -> Any:
    """Return a pool of actors that each have two tasks: one computes while the other waits."""
    fewest, most = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    return strategy(
        min_size=fewest, max_size=most, max_concurrent_calls_per_actor=_TASKS_AT_ONCE, enable_true_multi_threading=True
    )


def _job_actor(contents: Any, request: cluster.Request) -> Any:
    """Start the job's actor on the driver's machine, so that both end together."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node_affinity = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    actor_class = ray.remote(Job).options(
        num_cpus=0, max_concurrency=1000, max_task_retries=-1, scheduling_strategy=node_affinity
    )
    return actor_class.remote(contents, request)
