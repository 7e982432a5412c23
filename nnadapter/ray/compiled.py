"""The compiled file of a kind of machine: made in a task of its own, and written once on each machine."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.errors import StoredFileError
from nnadapter.files.replacing import replace_file
from nnadapter.inference.compiling import compile as compile_model
from nnadapter.ray.kinds import Kind
from nnadapter.ray.request import Request
from nnadapter.reports.report import PartitionReport

_FOLDER = "nnadapter"
_ENDING = ".compiled"
_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What compiling for a kind came to."""

    contents: np.ndarray[Any, Any] | None
    """Bytes of the file; None where it lies in a folder that all machines see."""
    path: str
    seconds: float
    nbytes: int
    was_there: bool
    """In that folder, from a job before."""
    notes: tuple[str, ...]
    """What was warned of."""
    cached: int
    """Segments whose programs were found in a cache."""
    report: str
    """The report of the plan, as JSON."""


def compile_locally(contents: np.ndarray[Any, Any], kind: Kind, request: Request) -> Made:
    """Compile a model on this machine, for all machines of its kind."""
    target = Path(request.folder, f"{file_name(kind, request)}{_ENDING}") if request.folder else None
    started = perf_counter()
    if target is not None and target.is_file():
        return _made(target, None, started, (), "", was_there=True)
    with tempfile.TemporaryDirectory(dir=session_folder()) as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = target or Path(folder, f"model{_ENDING}")
        report = compile_model(
            request.path or bytes(contents),
            path,
            devices=kind.devices,
            input_shapes=request.shapes or None,
            options=request.for_compiling,
            keep_model=request.options.fallback_at("run") != "forbid",
            open_sizes=True if request.shapes and _leaves_open(request) else None,
        )
        compiled_bytes = None if target is not None else np.frombuffer(path.read_bytes(), np.uint8)
        messages = (*(str(warning.message) for warning in caught), *_of_sizes(path, request, report))
        notes = tuple(dict.fromkeys(messages))
        hits = sum(segment.cache is not None and segment.cache.hit for segment in report.segments)
        return _made(path, compiled_bytes, started, notes, report.to_json(), was_there=False, cached=hits)


def _of_sizes(path: Path, request: Request, report: PartitionReport) -> Iterator[str]:
    """What is to be known where the model takes sizes that the file has no plan for: the CPU does."""
    shapes = [value.shape or () for value in request.signature.inputs]
    varies = any(not isinstance(size, int) for shape in shapes for size in shape[1:])
    is_open = any(plan.HasField("open") for plan in CompiledFile(path).message.plans)
    if varies and not is_open:
        sizes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
        reason = "" if report.plans is None else f": {report.plans.sizes}"
        yield f"rows of other sizes than {sizes} run on the CPU{reason}; say which come by input_shapes="


def _made(
    path: Path, contents: Any, started: float, notes: tuple[str, ...], report: str, *, was_there: bool, cached: int = 0
) -> Made:
    return Made(
        contents=contents,
        path="" if contents is not None else str(path),
        seconds=perf_counter() - started,
        nbytes=path.stat().st_size,
        was_there=was_there,
        notes=notes,
        cached=cached,
        report=report,
    )


def _leaves_open(request: Request) -> bool:
    shapes = [value.shape for value in request.signature.inputs]
    return any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes)


def file_name(kind: Kind, request: Request) -> str:
    """What tells the file from all others: the model, the kind of machine, and how it is compiled."""
    shapes = [sorted((name, tuple(shape)) for name, shape in shape_set.items()) for shape_set in request.shapes]
    key_text = repr((request.digest, kind.name, kind.devices, repr(request.for_compiling), shapes))
    return sha256(key_text.encode()).hexdigest()[:_SHOWN]


def written(contents: np.ndarray[Any, Any], name: str, folder: str | os.PathLike[str]) -> Path:
    """Return the path of a file with these contents in a folder of this machine; who comes later finds it.

    Sessions map it, so that the weights of all on one machine lie in its memory once.

    Raises:
        StoredFileError: the folder is somebody else's.
    """
    user_folder = Path(folder, f"{_FOLDER}-{os.getuid() if hasattr(os, 'getuid') else 'files'}")
    user_folder.mkdir(mode=0o700, exist_ok=True)
    status = user_folder.lstat()
    if user_folder.is_symlink() or (hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022)):
        raise StoredFileError(
            f"folder {str(user_folder)!r} is not yours alone, and programs in it are run; remove it",
            file=str(user_folder),
        )
    path = user_folder / f"{name}{_ENDING}"
    if not (path.is_file() and path.stat().st_size == contents.nbytes):
        replace_file(path, lambda file: file.write(contents.data))
    return path


def session_folder() -> Path:
    """Return the folder of this run of Ray on this machine, which is removed with it."""
    import ray

    context = ray.get_runtime_context()
    folder = Path(context.get_temp_dir(), context.get_session_name())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sizes_in(file: Any, inputs: Sequence[str]) -> int | None:
    """The largest number of rows that a compiled file serves; None where a plan of it leaves sizes open."""
    plans = list(file.message.plans)
    if any(plan.HasField("open") for plan in plans):
        return None
    firsts = {file.shapes(plan)[name][0] for plan in plans for name in inputs if file.shapes(plan)[name]}
    return max(firsts, default=None)
