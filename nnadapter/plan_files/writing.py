"""A plan as a JSON file, one node per line, so that people can compare two with the tools they have."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec.structs import asdict

from nnadapter.errors import PlanFileError
from nnadapter.files.replacing import write_file
from nnadapter.plan_files.values import FORMAT, FORMAT_VERSION, PlanFile


def write_plan(path: str | os.PathLike[str], plan: PlanFile) -> None:
    """Write `plan` to a file that is complete or not there; to a device or a pipe directly.

    Raises:
        PlanFileError: the file cannot be written; what stood there stays.
    """
    target = Path(path)
    contents = plan_text(plan).encode()
    try:
        write_file(target, lambda file: file.write(contents))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(
            f"plan file {str(target)!r} cannot be written: {reason}; give another path", file=str(target)
        ) from error


def plan_text(plan: PlanFile) -> str:
    """Return the contents of the file."""
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": plan.model,
        "devices": dict(plan.devices),
        "policy": plan.policy,
        "input_shapes": {name: list(shape) for name, shape in plan.input_shapes.items()},
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    nodes = ",\n".join(f"    {json.dumps(asdict(entry))}" for entry in plan.entries)
    return "\n".join(["{", *lines, '  "nodes": [', *([nodes] if nodes else []), "  ]", "}", ""])
