"""The report of a model on some devices, without compiling anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.analysis import Analyser
from nnadapter.closing import close_all
from nnadapter.compilation import refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.options import Options, default_devices, options_from
from nnadapter.preparation.loading import load_model
from nnadapter.preparation.prepare import prepare
from nnadapter.preparation.sizes import default_shapes
from nnadapter.reports.facts import PartitionReport, report_of
from nnadapter.targets import Target, open_targets

if TYPE_CHECKING:
    import onnx


def partition_report(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
) -> PartitionReport:
    """Return what would run where and why; nothing is compiled.

    Args:
        model: path, contents, or `onnx.ModelProto`.
        devices: as for `InferenceSession`.
        input_shapes: shapes of inputs whose sizes the model leaves open; usual sizes are tried where none is given.
        options: how to decide.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: `input_shapes` does not fit, or no usual size does.
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as for `InferenceSession`.
    """
    chosen = options_from(options)
    targets = open_targets(default_devices() if devices is None else devices)
    try:
        return _report(targets, load_model(model), input_shapes, chosen)
    finally:
        close_all(target.context for target in targets)


def _report(
    targets: tuple[Target, ...],
    model: onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None,
    chosen: Options,
) -> PartitionReport:
    prepared = prepare(model)
    given = {name: tuple(int(size) for size in shape) for name, shape in (input_shapes or {}).items()}
    analysis = Analyser(prepared, targets).judge(default_shapes(prepared, given)).settle()
    warn_of_idle(analysis, targets, chosen)
    refuse_fallback(analysis, targets, chosen)
    warn_of_last_resort(analysis, targets, chosen)
    return report_of(analysis, chosen.policy)
