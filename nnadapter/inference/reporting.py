"""The report of a model on some devices, without compiling anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nnadapter.costs.calibration_files import driver_version
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.kernels.deciding import type_rules
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.sizes import default_shapes
from nnadapter.options import Options, default_devices, options_from
from nnadapter.plan_files.binding import plan_entries
from nnadapter.plan_files.values import PlanFile
from nnadapter.plan_files.writing import write_plan
from nnadapter.planning.analysis import Analyzer
from nnadapter.planning.judged import Analysis
from nnadapter.planning.placing import Placer
from nnadapter.planning.targets import Target, open_targets
from nnadapter.process.closing import close_all
from nnadapter.process.collecting import paused_collection
from nnadapter.reports.building import Observed, report_of
from nnadapter.reports.facts import PartitionReport
from nnadapter.running.compilation import Timed
from nnadapter.running.fallback import refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.running.measuring import EARLIER, Memory

if TYPE_CHECKING:
    import onnx


@paused_collection()
def partition_report(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    save_plan: str | os.PathLike[str] | None = None,
) -> PartitionReport:
    """Return what would run where and why; nothing is compiled.

    By policy `measured` it is what was measured earlier for this model, these devices and shapes; if nothing was, the
    placement that costs predict to be best, which a note of the report says.

    Args:
        model: path, contents, or `onnx.ModelProto`.
        devices: as for `InferenceSession`.
        input_shapes: shapes of inputs whose sizes the model leaves open; usual sizes are tried where none is given.
        options: how to decide.
        save_plan: a file to write where every node goes to; `Options.plan` takes it.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: `input_shapes` does not fit, or no usual size does.
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as for `InferenceSession`.
    """
    chosen = options_from(options)
    targets = open_targets(default_devices() if devices is None else devices)
    try:
        proto = load_model(model)
        analysis, timed, note = _analyzed(targets, proto, input_shapes, chosen)
        warn_of_idle(analysis, targets, chosen)
        refuse_fallback(analysis, targets, chosen)
        warn_of_last_resort(analysis, targets, chosen)
        if save_plan is not None:
            write_plan(save_plan, _plan_file(analysis, _name(model, proto), chosen.policy))
        observed = Observed(timed=timed, chosen=note, notes=_unmeasured(chosen, timed, note), model=_name(model, proto))
        return report_of(analysis, chosen.policy, observed)
    finally:
        close_all(target.context for target in targets)


def _analyzed(
    targets: tuple[Target, ...],
    model: onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None,
    chosen: Options,
) -> tuple[Analysis, tuple[Timed, ...], str]:
    """The model placed and cut; by policy `measured`, also what was timed, and how."""
    prepared = prepare(model, type_rules([target.kernels for target in targets]))
    given = {name: tuple(int(size) for size in shape) for name, shape in (input_shapes or {}).items()}
    judged = Analyzer(prepared, Placer(chosen, targets)).judge(default_shapes(prepared, given))
    if chosen.policy != "measured":
        return judged.settle(), (), ""
    known, note = Memory(model).recall(judged)
    if known is None:
        return judged.settle(), (), f"not measured yet: a run of the model measures it{f'; {note}' if note else ''}"
    return known.judged.settle(), known.timed, EARLIER


def _unmeasured(chosen: Options, timed: Sequence[Timed], note: str) -> tuple[str, ...]:
    return (note,) if chosen.policy == "measured" and not timed else ()


def _plan_file(analysis: Analysis, name: str, policy: str) -> PlanFile:
    structure = analysis.judged.structure()
    return PlanFile(
        model=name,
        devices={device: driver_version(device) for device in analysis.plan.devices},
        policy=policy,
        input_shapes=dict(analysis.shapes),
        entries=plan_entries(analysis.specialized, structure, analysis.plan.placement),
    )


def _name(given: object, model: onnx.ModelProto) -> str:
    return PurePath(given).name if isinstance(given, (str, os.PathLike)) else model.graph.name
