"""The segments of a plan, each as an ONNX file of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter.errors import ModelFileError
from nnadapter.exporting import export_model
from nnadapter.ir.model import Model
from nnadapter.onnx.files import save_model
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from partition.plan import Step

if TYPE_CHECKING:
    import onnx


def write_segments(folder: str | os.PathLike[str], partitioning: Partitioning) -> tuple[Path, ...]:
    """Write every segment to `folder`, as `segment_0_fake_npu.onnx`, and return the paths.

    Inputs and outputs are called as in the model. A segment is what its device is given: adapter IR as what it says,
    ONNX as it is. Where ONNX cannot say an operation, as one from outside, the segment is the nodes of the model.

    Raises:
        ModelFileError: a file cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"{str(place)!r} is no folder: {error.strerror or error}; give another path") from error
    paths = []
    for number, (step, piece) in enumerate(zip(partitioning.plan.steps, partitioning.pieces, strict=True)):
        device = re.sub(r"[^\w.-]", "_", step.device)  # a device's id is any text: `:`, or a path out of the folder
        paths.append(place / f"segment_{number}_{device}.onnx")
        save_model(_segment(step, piece, partitioning), paths[-1])
    return tuple(paths)


def _segment(step: Step, piece: AdmittedSegment | None, partitioning: Partitioning) -> onnx.ModelProto:
    parts = partitioning.model.parts
    model = None if piece is None else piece.part.model
    if not isinstance(model, Model):
        part_model: onnx.ModelProto = (parts.cpu_part(step) if model is None else parts.part(step)).model
        return part_model  # nodes that kernels compute are what they were
    exported = export_model(model)
    if exported.refusals:
        original: onnx.ModelProto = parts.part(step).model
        return original
    return exported.model
