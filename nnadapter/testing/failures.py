"""Each failure as a folder: model, inputs, what was expected and got, versions, and the command that repeats it.

operations__ADD__0/
failure.json        case, kind, detail, versions, command, and the data types of all arrays
model.onnx          or model.nnadapter with its weights; what is too broken for either is in model.txt
input_0.npy ...     expected_0.npy ...     got_0.npy ...
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnadapter.errors import NNAdapterError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.protobuf.files import save
from nnadapter.ir.text import to_text
from nnadapter.process.versions import installed_version, own_version
from nnadapter.testing.bench import Settings
from nnadapter.testing.commands import repeat_command
from nnadapter.testing.outcomes import Evidence, FailedOutcome

_PACKAGES = ("numpy", "onnx", "onnxruntime", "ml-dtypes")


def keep_failure(folder: Path, settings: Settings, name: str, failed: FailedOutcome) -> Path:
    """Write a failure to a folder of its own in `folder`, whole or not at all, and return it.

    Raises:
        OSError: it cannot be written.
    """
    target = folder / name.replace("/", "__")
    part = folder / f".{target.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        evidence = failed.evidence
        if evidence.model is not None:
            _write_model(part, evidence)
        groups = {"input": evidence.inputs, "expected": evidence.expected, "got": evidence.got}
        for kind, arrays in groups.items():
            _write_arrays(part, kind, arrays)
        facts = {
            "case": name,
            "kind": failed.kind.value,
            "detail": failed.detail,
            "command": repeat_command(settings, name),
            "versions": _versions(),
            "arrays": {kind: [_told(array) for array in arrays] for kind, arrays in groups.items()},
        }
        (part / "failure.json").write_text(json.dumps(facts, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _write_model(folder: Path, evidence: Evidence) -> None:
    model = evidence.model
    if not isinstance(model, Model):
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return
    try:
        save(model, folder / "model.nnadapter")
        text = to_text(model)
    except (NNAdapterError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):  # it is invalid
        text = "\n".join(map(repr, (*model.operands, *model.operations, model.inputs, model.outputs)))
    (folder / "model.txt").write_text(text + "\n")


def _write_arrays(folder: Path, kind: str, arrays: Sequence[Array]) -> None:
    for position, array in enumerate(arrays):
        np.save(folder / f"{kind}_{position}.npy", array, allow_pickle=array.dtype == object)


def _told(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _versions() -> dict[str, str]:
    return {
        "nnadapter": own_version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **{package: installed_version(package) for package in _PACKAGES},
    }
