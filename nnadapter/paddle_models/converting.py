"""The files of a Paddle model -> its ONNX model, by a process of its own (`worker.py`).

The process sees the files under plain names in a folder of its own, where nothing else is: Paddle's C++ takes neither
every path nor every letter. What it prints is caught, and quoted where it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnadapter import limits
from nnadapter.errors import ConversionWarning, InvalidModelError, ModelFileError
from nnadapter.paddle_models.finding import PaddleFiles
from nnadapter.paddle_models.worker import NO_ROOM

_BEGIN = "import sys; sys.path[:] = sys.argv[2:]; from nnadapter.paddle_models.worker import main; main(sys.argv[1])"
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_REASONS = (
    re.compile(r"Model checker error log: (?P<reason>.*)"),
    re.compile(r"Failed to convert PaddlePaddle model: (?P<reason>.*)"),
    re.compile(r"\[ERROR\](?:\[Paddle2ONNX\])? ?(?P<reason>.*)"),
    re.compile(r"(?P<reason>\w*(?:Error|Exception): .*)"),
)
"""How lines of the converter begin that say what is wrong, the most telling one first."""
_NO_MODEL = "The exported ONNX model is invalid"
"""It says so and gives the model all the same."""
_ABORTED = "Due to the unsupported operators"
_QUOTED = 300
_NEXT = "save the model again, or convert it elsewhere and give the ONNX model"
_SAID_BYTES = 1 << 16
_INSTALLING = {"POLYGRAPHY_AUTOINSTALL_DEPS": "0"}
_QUIET = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore", "PADDLE_DISABLE_PROGRESS_BAR": "1"}
_SETTINGS = {"FLAGS_enable_pir_api": "1", "CUDA_VISIBLE_DEVICES": ""}
_LEFT_OUT = ("CUSTOM_DEVICE_ROOT", "PYTHONSTARTUP")


def convert(files: PaddleFiles) -> bytes:
    """Return the ONNX model of a Paddle model, with a warning where it may be wrong.

    Raises:
        InvalidModelError: it cannot be converted; the message says why, with the operations that are at fault.
        ModelFileError: there is no room for it to be converted in.
    """
    label = f"Paddle model {str(files.structure)!r}"
    try:
        with tempfile.TemporaryDirectory(prefix="nnadapter-paddle-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            _place(files.structure, folder / f"model{'.pdmodel' if files.is_old else '.json'}")
            if files.parameters is not None:
                _place(files.parameters, folder / "model.pdiparams")
            code, log_text = _run(folder, label)
            report = _told(folder)
            model_path = folder / "model.onnx"
            if code == NO_ROOM:
                raise ModelFileError(
                    f"{label} cannot be converted: no space left in {str(folder.parent)!r}; make room there, or name "
                    "another folder as TMPDIR"
                )
            if code or not model_path.exists() or _NO_MODEL in log_text:
                raise InvalidModelError(f"{label} cannot be converted to ONNX: {_why(code, log_text, report)}")
            contents = model_path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{label} cannot be converted: {error.strerror or error}; make room for it") from error
    if report.get("doubt"):
        warnings.warn(
            f"{label} was converted, and may be wrong: {_shortened(report['doubt'])}; "
            "compare its results with Paddle's",
            ConversionWarning,
            stacklevel=2,
        )
    return contents


def _place(path: Path, target: Path) -> None:
    """Have a file stand under another name as well."""
    try:
        target.symlink_to(path.absolute())
    except (OSError, NotImplementedError):  # not everybody may, on Windows
        shutil.copyfile(path, target)


def _run(folder: Path, label: str) -> tuple[int, str]:
    """The exit code of the process, and what it printed last."""
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    path = [entry for entry in sys.path if isinstance(entry, str)]
    with tempfile.TemporaryFile() as log_file:
        process = subprocess.Popen(
            [sys.executable or "python", "-c", _BEGIN, str(folder), *path],
            cwd=folder,
            env={**environment, **_INSTALLING, **_QUIET, **_SETTINGS},
            stdin=subprocess.PIPE,  # its end tells the process that this one is gone
            stdout=log_file,
            stderr=log_file,
            process_group=0,  # an interrupt from the keyboard is this process's alone
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


def _told(folder: Path) -> Mapping[str, Any]:
    """What the process knew, as far as it came."""
    try:
        report = json.loads((folder / "told.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _why(code: int, log_text: str, report: Mapping[str, Any]) -> str:
    """What is said of a failure."""
    unsupported = report.get("unsupported", ())
    if report.get("wrong"):
        return f"what paddle2onnx makes of it is not what Paddle computes: {str(report['wrong'])[:_QUOTED]}"
    if _ABORTED in log_text:
        names = ", ".join(map(str, unsupported)) or "which, it does not say"
        return f"paddle2onnx has no form of these operations: {names}; replace them in the network and save it again"
    lines = log_text.splitlines()
    for pattern in _REASONS:
        reason_match = next(
            (match for line in lines if (match := pattern.search(line)) and match["reason"].strip()), None
        )
        if reason_match is not None:
            return f"paddle2onnx says: {_shortened(reason_match['reason'])}; {_NEXT}"
    if report.get("error"):
        return f"{_shortened(report['error'])}; {_NEXT}"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the process that converts it {how}; {_NEXT}"


def _shortened(text: object) -> str:
    return " ".join(str(text).split()).rstrip(".")[:_QUOTED]
