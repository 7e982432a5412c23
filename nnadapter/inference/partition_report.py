"""Report of a model on some devices without compiling it: `nnadapter.partition_report`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nnadapter.costs.calibration import driver_version
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.engine.branches import of_choice, plan_of_file
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.fallback import Cause, refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.engine.file_texts import plans_held, served
from nnadapter.engine.measuring import EARLIER, PastChoices
from nnadapter.engine.observed import KeptReport, Observed, looked_up
from nnadapter.errors import InvalidOptionError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import assumed_inputs, default_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, options_from
from nnadapter.planning.plan_binding import plan_entries
from nnadapter.planning.plan_files import PlanFile, write_plan
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import paused_collection
from nnadapter.reports.builder import report_of
from nnadapter.reports.observed_report import build_report
from nnadapter.reports.report import PartitionReport

if TYPE_CHECKING:
    import onnx


@paused_collection
def partition_report(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    input_values: Mapping[str, Any] | None = None,
    save_plan: str | os.PathLike[str] | None = None,
    save_segments: str | os.PathLike[str] | None = None,
) -> PartitionReport:
    """Return what would run where and why; nothing is compiled.

    By policy `measured` it is what was measured earlier for this model, these devices and shapes; if nothing was, the
    placement that costs predict to be best, which a note of the report says.

    Args:
        model: path, contents, or `onnx.ModelProto`. Of a compiled model, the report is the one that is in it: what
            would ask for another is refused.
        devices: as for `InferenceSession`.
        input_shapes: shapes of inputs whose sizes the model leaves open; usual sizes are tried where none is given.
        options: how to decide.
        input_values: contents of inputs that choose branches of the model, one number standing for all elements;
            where they are not given, the branch is taken that a condition which holds takes.
        save_plan: a file to write where every node goes to; `Options.plan` takes it.
        save_segments: a folder to write every segment to, as an ONNX file that runs alone.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: `input_shapes` does not fit, or no usual size does.
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as for `InferenceSession`.
    """
    if kind_of(model) is SourceKind.COMPILED:
        assert isinstance(model, (str, os.PathLike, bytes)), "nothing else is"
        if save_segments is not None:
            raise InvalidOptionError(
                "segments are written of a model, not of a compiled one, whose report is kept in it; give the model"
            )
        _refuse_asking(options_from(options), devices=devices, input_shapes=input_shapes, save_plan=save_plan)
        file = CompiledFile(model)
        note = f"the file is for {served(file, plans_held(file))}" if file.message.order else ""
        record = plan_of_file(file, input_values or {})
        return build_report(KeptReport(file.report(record), notes=(note,) if note else ()))
    chosen = options_from(options)
    contents = optional_part("paddle_model_as_onnx")(model, chosen)
    setting = open_setting(default_devices() if devices is None else devices, chosen)
    try:
        proto = load_model(contents)
        observed = _observed(setting, proto, _name(model, proto), input_shapes or {}, input_values or {})
        partitioning = observed.partitioning
        reported_causes: set[Cause] = set()
        warn_of_idle(partitioning, reported_causes)
        refuse_fallback(partitioning)
        warn_of_last_resort(partitioning, reported_causes)
        if save_plan is not None:
            write_plan(save_plan, _plan_file(partitioning, observed.model))
        if save_segments is not None:
            from nnadapter.inference.segment_files import write_segments  # with all that knows ONNX's ops

            write_segments(save_segments, partitioning)
        return report_of(observed)
    finally:
        setting.close()


def _refuse_asking(options: Options, **arguments: Any) -> None:
    """Refuse what asks for another report than the one that is kept in a compiled model."""
    usual = Options()
    placing = {name: getattr(options, name) != getattr(usual, name) for name in ("policy", "rules", "plan")}
    named = [name for name, value in (arguments | placing).items() if value]
    if named:
        raise InvalidOptionError(
            "the report of a compiled model is kept in it, and says what was decided when it was compiled; leave "
            f"{', '.join(named)} out, or give the model that it was made of"
        )


def _observed(
    setting: Setting,
    model: onnx.ModelProto,
    name: str,
    input_shapes: Mapping[str, Sequence[int]],
    input_values: Mapping[str, Any],
) -> Observed:
    """The model placed and cut; by policy `measured`, as it was timed earlier, or with a note that it was not."""
    prepared = prepare_for(model, setting)
    shapes_by_name = {name: tuple(int(size) for size in shape) for name, shape in input_shapes.items()}
    observations = list[Observed]()

    def plan(chosen: Prepared) -> Partitioning:
        observations.append(_planned(setting, chosen, shapes_by_name))
        return observations[-1].partitioning

    usual = partial(default_shapes, prepared, shapes_by_name)
    if setting.accelerators:
        partitioning, notes = of_choice(prepared, usual, input_values, plan)
    else:  # ONNX Runtime runs the model as it was given
        partitioning, notes = plan(prepared), ()
    observed = next(observation for observation in observations if observation.partitioning is partitioning)
    return replace(
        observed, notes=(*observed.notes, *_assumed(assumed_inputs(prepared.graph, shapes_by_name)), *notes), model=name
    )


def _planned(setting: Setting, prepared: Prepared, shapes: Shapes) -> Observed:
    """The model placed and cut, see `_observed`."""
    planner = Planner(prepared, setting)
    judgment = planner.judge(default_shapes(prepared, shapes))
    if not setting.constraints.policy.times:
        partitioning = planner.settle(judgment)
        return Observed(partitioning=partitioning, cache=dict(looked_up(partitioning)))
    past_choice, reason = PastChoices(setting).recall(judgment)
    if past_choice is None:
        note = f"not measured yet: a run of the model measures it{f'; {reason}' if reason else ''}"
        return Observed(partitioning=planner.settle(judgment), chosen=note, notes=(note,))
    return Observed(partitioning=planner.settle(past_choice.judgment), timed=past_choice.timed, chosen=EARLIER)


def _assumed(names: Sequence[str]) -> tuple[str, ...]:
    """What is said of inputs whose sizes nobody gave."""
    if not names:
        return ()
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (f"the model leaves sizes of input {names[0]!r}{more} open: usual ones are assumed; --shape gives others",)


def _plan_file(partitioning: Partitioning, name: str) -> PlanFile:
    model, plan = partitioning.model, partitioning.plan
    return PlanFile(
        model=name,
        devices={device: driver_version(device) for device in plan.devices},
        policy=partitioning.setting.constraints.policy.name,
        input_shapes=dict(model.shapes),
        entries=plan_entries(model.specialized, model.structure, plan.placement),
    )


def _name(source: object, model: onnx.ModelProto) -> str:
    return PurePath(source).name if isinstance(source, (str, os.PathLike)) else model.graph.name
