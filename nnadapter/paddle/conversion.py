"""Conversion of Paddle models to ONNX in a child process (`worker.py`), and the cache of converted models.

The child works in a temporary folder, because Paddle's C++ does not accept all paths.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from hashlib import file_digest
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nnadapter import limits
from nnadapter.errors import ConversionWarning, InvalidModelError, MissingExtraError, ModelFileError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.options import Options, options_from
from nnadapter.paddle.model_files import PaddleFiles, files_of
from nnadapter.paddle.worker import NO_ROOM, OPSET
from nnadapter.process.resources import new_lock
from nnadapter.store.folder import Folder, Key, KeyPart, folder_of, text_part, warn_once

if TYPE_CHECKING:
    import onnx


PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"paddle": ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu"), "paddle2onnx": ("paddle2onnx",)}
)
"""Module -> packages that provide it."""
_LOWEST: Mapping[str, tuple[int, int]] = MappingProxyType({"paddle": (3, 0), "paddle2onnx": (2, 0)})

_EXTRA = "run: pip install 'nnadapter[paddle]'"
_WITHOUT_DEPENDENCIES = "run: pip install 'paddlepaddle>=3.0' && pip install --no-deps 'paddle2onnx>=2.0.1'"
"""Advice for Python 3.12. It omits onnxoptimizer, which paddle2onnx requires and which has no wheel."""
_OTHER_PYTHON = (
    "paddle2onnx 2.1 and earlier have no wheel for Python 3.13 and later; run the model with Python 3.11 or 3.12, or "
    "compile it there (`nnadapter compile`) and open the compiled file here"
)


def require_paddle(feature: str) -> Mapping[str, str]:
    """Check that Paddle and paddle2onnx are installed, and return their versions, `?` if unknown.

    Raises:
        MissingExtraError: one is missing or too old.
    """
    versions = {module: _version(packages) for module, packages in PACKAGES.items()}
    for module, version in versions.items():
        lowest = _LOWEST[module]
        if find_spec(module) is None:
            problem = "is not installed"
        elif version != "?" and tuple(map(int, re.findall(r"\d+", version)[:2])) < lowest:
            problem = f"has version {version}, expected {'.'.join(map(str, lowest))} or later"
        else:
            continue
        package = PACKAGES[module][0]
        raise MissingExtraError(
            f"{feature} needs the packages paddlepaddle and paddle2onnx, but {package} {problem}; {_next_step()}",
            extra="paddle",
            package=package,
        )
    return versions


def _next_step() -> str:
    if sys.version_info < (3, 12):
        return _EXTRA
    return _WITHOUT_DEPENDENCIES if sys.version_info < (3, 13) else _OTHER_PYTHON


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "?"


_BEGIN = "import sys; sys.path[:] = sys.argv[2:]; from nnadapter.paddle.worker import main; main(sys.argv[1])"
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_REASONS = (
    re.compile(r"Model checker error log: (?P<reason>.*)"),
    re.compile(r"Failed to convert PaddlePaddle model: (?P<reason>.*)"),
    re.compile(r"\[ERROR\](?:\[Paddle2ONNX\])? ?(?P<reason>.*)"),
    re.compile(r"(?P<reason>\w*(?:Error|Exception): .*)"),
)
"""Patterns of the converter's error lines, the most specific first."""
_NO_MODEL = "The exported ONNX model is invalid"
"""Message of the converter about an invalid model. It writes the model nevertheless."""
_ABORTED = "Due to the unsupported operators"
_QUOTED = 300
_NEXT = "save the model again, or convert it elsewhere and give the ONNX model"
_SAID_BYTES = 1 << 16
_INSTALLING = {"POLYGRAPHY_AUTOINSTALL_DEPS": "0"}
_QUIET = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore", "PADDLE_DISABLE_PROGRESS_BAR": "1"}
_SETTINGS = {"FLAGS_enable_pir_api": "1", "CUDA_VISIBLE_DEVICES": ""}
_LEFT_OUT = ("CUSTOM_DEVICE_ROOT", "PYTHONSTARTUP")


def convert(files: PaddleFiles) -> bytes:
    """Convert a Paddle model to ONNX; warn if the result may be wrong.

    Raises:
        InvalidModelError: it cannot be converted.
        ModelFileError: the disk is full.
    """
    label = f"Paddle model {str(files.structure)!r}"
    try:
        with tempfile.TemporaryDirectory(prefix="nnadapter-paddle-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            _place(files.structure, folder / f"model{'.pdmodel' if files.is_old else '.json'}")
            if files.parameters is not None:
                _place(files.parameters, folder / "model.pdiparams")
            code, log_text = _run(folder, label)
            report = _read_worker_facts(folder)
            model_path = folder / "model.onnx"
            if code == NO_ROOM:
                raise ModelFileError(
                    f"{label} cannot be converted: no space left in {str(folder.parent)!r}; free space there, "
                    "or set TMPDIR to another folder"
                )
            if code or not model_path.exists() or _NO_MODEL in log_text:
                raise InvalidModelError(
                    f"{label} cannot be converted to ONNX: {_failure_reason(code, log_text, report)}"
                )
            contents = model_path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{label} cannot be converted: {error.strerror or error}; free disk space") from error
    if report.get("doubt"):
        warnings.warn(
            f"{label} was converted, but may be wrong: {_shortened(report['doubt'])}; "
            "compare its results with Paddle's",
            ConversionWarning,
            stacklevel=2,
        )
    return contents


def _place(path: Path, target: Path) -> None:
    try:
        target.symlink_to(path.absolute())
    except (OSError, NotImplementedError):  # needs a privilege on Windows
        shutil.copyfile(path, target)


def _run(folder: Path, label: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    path = [entry for entry in sys.path if isinstance(entry, str)]
    with tempfile.TemporaryFile() as log_file:
        process = subprocess.Popen(
            [sys.executable or "python", "-c", _BEGIN, str(folder), *path],
            cwd=folder,
            env={**environment, **_INSTALLING, **_QUIET, **_SETTINGS},
            stdin=subprocess.PIPE,  # end of file means that this process ended
            stdout=log_file,
            stderr=log_file,
            process_group=0,  # keyboard interrupts reach only this process
        )
        try:
            code = process.wait(limits.PADDLE_CONVERSION_S)
        except subprocess.TimeoutExpired:
            raise InvalidModelError(
                f"{label} was not converted to ONNX within {limits.PADDLE_CONVERSION_S:g} s; convert it with "
                "paddle2onnx, and give the ONNX model"
            ) from None
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
        log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - _SAID_BYTES))
        return code, _COLORS.sub("", log_file.read().decode(errors="replace"))


def _read_worker_facts(folder: Path) -> Mapping[str, Any]:
    try:
        report = json.loads((folder / "told.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _failure_reason(code: int, log_text: str, report: Mapping[str, Any]) -> str:
    unsupported = report.get("unsupported", ())
    if report.get("wrong"):
        return f"the model from paddle2onnx differs from Paddle's results: {str(report['wrong'])[:_QUOTED]}"
    if _ABORTED in log_text:
        names = ", ".join(map(str, unsupported)) or "unnamed ones"
        return f"paddle2onnx cannot convert these operations: {names}; replace them in the network and save it again"
    lines = log_text.splitlines()
    for pattern in _REASONS:
        reason_match = next(
            (match for line in lines if (match := pattern.search(line)) and match["reason"].strip()), None
        )
        if reason_match is not None:
            return f"paddle2onnx reports: {_shortened(reason_match['reason'])}; {_NEXT}"
    if report.get("error"):
        return f"{_shortened(report['error'])}; {_NEXT}"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the process that converts it {how}; {_NEXT}"


def _shortened(text: object) -> str:
    return " ".join(str(text).split()).rstrip(".")[:_QUOTED]


KIND = "onnx"
_REVISION = 4
"""Part of the cache key, increased whenever `repair` or `worker` changes results."""
_converting = new_lock()
"""Serializes conversions, so that a second request finds the cached model."""


def as_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    options: Options | Mapping[str, Any] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> Any:
    """Convert Paddle models and PyTorch modules to ONNX; return other sources unchanged."""
    kind = kind_of(source)
    if kind is SourceKind.PADDLE:
        assert isinstance(source, (str, os.PathLike)), "nothing else is"
        return onnx_of(source, options, parameters)
    if kind is SourceKind.MODULE:
        from nnadapter.torch.modules import model_of

        return model_of(source)
    return source


def onnx_of(
    path: str | os.PathLike[str],
    options: Options | Mapping[str, Any] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> bytes:
    """Convert a Paddle model, or read it from the cache. Raises ModelFileError and InvalidModelError.

    Args:
        path: a file or folder of the model.
        options: `cache_dir` selects the cache folder.
        parameters: the parameter file, unless it is next to the structure.
    """
    files = files_of(Path(path), Path(parameters) if parameters is not None else None)
    versions = require_paddle(f"Paddle model {os.fspath(path)!r}")
    chosen = options_from(options)
    if chosen.cache_dir is False:
        with _converting:
            return convert(files)
    return _get_or_convert(files, versions, folder_of(chosen))


def _get_or_convert(files: PaddleFiles, versions: Mapping[str, str], folder: Folder) -> bytes:
    key = _key(files, versions)
    cached_contents = folder.contents(key)
    if isinstance(cached_contents, memoryview):
        return bytes(cached_contents)
    with _converting:
        cached_contents = folder.contents(key)
        if isinstance(cached_contents, memoryview):
            return bytes(cached_contents)
        folder.warn_of_miss(cached_contents)
        started = time.perf_counter()
        contents = convert(files)
        if _key(files, versions) != key:
            raise ModelFileError(
                f"Paddle model {str(files.structure)!r} changed while it was converted; wait until it is written"
            )
        reason = folder.keep(key, contents, time.perf_counter() - started)
    if reason:
        warn_once(f"a converted Paddle model is not cached: {reason}")
    return contents


def _key(files: PaddleFiles, versions: Mapping[str, str]) -> Key:
    nothing = text_part({})
    parts = {
        "device": text_part({"name": "paddle"}),
        "driver": text_part(versions),
        "host": text_part({"revision": _REVISION}),
        "machine": nothing,
        "options": text_part({"opset": OPSET}),
        "structure": _part(files.structure, {"operations": f"from the Paddle model {files.structure.name}"}),
        "shapes": KeyPart(nothing.digest, {"inputs": "all shapes"}),
        "constants": nothing if files.parameters is None else _part(files.parameters, {}),
    }
    return Key(KIND, parts)


def _part(path: Path, words: Mapping[str, str]) -> KeyPart:
    try:
        with path.open("rb") as file:
            return KeyPart(file_digest(file, "sha256").hexdigest(), {**words, "bytes": str(path.stat().st_size)})
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error.strerror}; check the path") from error
