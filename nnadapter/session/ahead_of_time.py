"""Planning and compiling ahead of time: `nnadapter.partition_report`, segments as ONNX files, `nnadapter.compile`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nnadapter import errors
from nnadapter.accuracy.checks import with_checks
from nnadapter.candidates.random_feeds import random_feed
from nnadapter.costs.calibration import driver_version
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.engine.branches import partition_selected, plan_of_file
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.engine import PlanEngine
from nnadapter.engine.fallback import Cause, refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.engine.file_texts import dynamic_shape_sets, served_shapes_text
from nnadapter.engine.measuring import EARLIER, PastChoices
from nnadapter.engine.model_source import ModelPlanSource, loaded
from nnadapter.engine.observed import KeptReport, Observed, looked_up
from nnadapter.engine.saving import save
from nnadapter.exporting import export_model
from nnadapter.files.atomic_files import check_writable, is_special
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.model import Model
from nnadapter.onnx.files import load_model, save_model
from nnadapter.onnx.preparation.default_sizes import assumed_inputs, check_known_rank, default_shapes, further_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes, read_shapes
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, options_from
from nnadapter.planning.plan_files import PlanFile, plan_entries, write_plan
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.resources import paused_collection
from nnadapter.records import replace
from nnadapter.report.builder import report_of
from nnadapter.report.observed_report import build_report
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import first_of
from partition.plan import Step

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.engine.branches import BranchSelection
    from nnadapter.session.session import ModelSource


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
    """Return which device would run each node of a model, and why, without compiling.

    With policy `measured`, the placement is one that was timed earlier, or a prediction with a note.

    Args:
        model: path, bytes, or `onnx.ModelProto`. For a compiled model, return its stored report.
        devices: as in `InferenceSession`.
        input_shapes: shapes of dynamic inputs; default: assumed shapes.
        options: `Options`, or a mapping of its fields.
        input_values: input name -> array or number, for inputs that decide branches. Default: conditions are true.
        save_plan: file to write with the placement, for `Options.plan`.
        save_segments: folder to write with every segment as an ONNX file.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: `input_shapes` do not fit, or no shape could be assumed.
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as in `InferenceSession`.
    """
    if kind_of(model) is SourceKind.COMPILED:
        assert isinstance(model, (str, os.PathLike, bytes)), "nothing else is"
        if save_segments is not None:
            raise errors.InvalidOptionError("segments cannot be written from a compiled model; give the original model")
        _refuse_asking(options_from(options), devices=devices, input_shapes=input_shapes, save_plan=save_plan)
        file = CompiledFile(model)
        note = f"the file is for {served_shapes_text(file, dynamic_shape_sets(file))}" if file.message.order else ""
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
            write_segments(save_segments, partitioning)
        report = report_of(observed)
        return report if chosen.precision != "auto" else replace(report, precision_choice=_UNDECIDED)
    finally:
        setting.close()


_UNDECIDED = "auto: the first run of a session decides; this report is for the default precision of the devices"
_PLACING = ("policy", "precision", "rules", "plan")


def _refuse_asking(options: Options, **arguments: Any) -> None:
    usual = Options()
    placing = {name: getattr(options, name) != getattr(usual, name) for name in _PLACING}
    named = [name for name, value in (arguments | placing).items() if value]
    if named:
        raise errors.InvalidOptionError(
            f"a compiled model contains its report, fixed when it was compiled; leave {', '.join(named)} "
            "out, or give the original model"
        )


def _observed(
    setting: Setting,
    model: onnx.ModelProto,
    name: str,
    input_shapes: Mapping[str, Sequence[int]],
    input_values: Mapping[str, Any],
) -> Observed:
    prepared = prepare_for(model, setting)
    shapes_by_name = {name: tuple(int(size) for size in shape) for name, shape in input_shapes.items()}
    observations = list[Observed]()

    def plan(chosen: Prepared) -> Partitioning:
        observations.append(_planned(setting, chosen, shapes_by_name))
        return observations[-1].partitioning

    usual = partial(default_shapes, prepared, shapes_by_name)
    if setting.accelerators:
        partitioning, notes = partition_selected(prepared, usual, input_values, plan)
    else:  # ONNX Runtime runs the model unchanged
        partitioning, notes = plan(prepared), ()
    observed = next(observation for observation in observations if observation.partitioning is partitioning)
    return replace(
        observed, notes=(*observed.notes, *_assumed(assumed_inputs(prepared.graph, shapes_by_name)), *notes), model=name
    )


def _planned(setting: Setting, prepared: Prepared, shapes: Shapes) -> Observed:
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


def _assumed(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield (
            f"input {first_of([*map(repr, names)], 1)} of the model has dynamic dimensions: usual sizes are assumed; "
            "set others with --shape"
        )


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


def write_segments(folder: str | os.PathLike[str], partitioning: Partitioning) -> tuple[Path, ...]:
    """Write every segment to `folder`, as `segment_0_fake_npu.onnx`, and return the paths. Raises ModelFileError.

    A segment is exported as its device receives it, or with its original nodes if ONNX lacks one of its operations.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.ModelFileError(
            f"{str(place)!r} is not a folder: {error.strerror or error}; give another path"
        ) from error
    paths = []
    for number, (step, piece) in enumerate(zip(partitioning.plan.steps, partitioning.pieces, strict=True)):
        device = re.sub(r"[^\w.-]", "_", step.device)  # device names may contain any character, such as `:` or `/`
        paths.append(place / f"segment_{number}_{device}.onnx")
        save_model(_segment(step, piece, partitioning), paths[-1])
    return tuple(paths)


def _segment(step: Step, piece: AdmittedSegment | None, partitioning: Partitioning) -> onnx.ModelProto:
    parts = partitioning.model.parts
    model = None if piece is None else piece.part.model
    if not isinstance(model, Model):
        part_model: onnx.ModelProto = (parts.cpu_part(step) if model is None else parts.part(step)).model
        return part_model  # kernels compute the original nodes
    exported = export_model(model)
    if exported.refusals:
        original: onnx.ModelProto = parts.part(step).model
        return original
    return exported.model


_TRIES = 1
_MOST_PLANS = 64


def compile(  # noqa: A001  public name: nnadapter.compile
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    out: str | os.PathLike[str],
    *,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | Iterable[Mapping[str, Sequence[int]]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    sess_options: onnxruntime.SessionOptions | None = None,
    keep_model: bool = False,
    dynamic_shapes: bool | None = None,
) -> PartitionReport:
    """Compile a model for devices into one file that `InferenceSession(out)` opens without the model.

    Args:
        model: ONNX model (path or bytes), path of a Paddle model, or `onnx.ModelProto`.
        out: path of the file, written atomically.
        devices: as in `InferenceSession`. If fallback is forbidden, the file has no CPU fallback.
        input_shapes: one or several sets of input shapes; None for assumed shapes.
        dynamic_shapes: True: each plan serves all of its guarded shapes, if devices support it. False: one plan per set
            of shapes. None: True if the model has dynamic shapes and there are no `input_shapes`.
        options: `Options`, or a mapping of its fields. With `verify`, programs are checked on random inputs.
        sess_options: ONNX Runtime's SessionOptions, for segments on the CPU.
        keep_model: also store the model, so that the CPU can run other shapes.

    Returns:
        Report for the last set of shapes.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        CompiledModelError: the file cannot be written, or a program cannot be serialized.
        InvalidOptionError: an option or a path is not valid.
        NotDelegatedError, CompilationError: fallback is forbidden and would be needed.
    """
    chosen, target = options_from(options), Path(out)
    if is_special(target):
        raise errors.InvalidOptionError(f"{str(target)!r} is a device or a pipe; give the path of a regular file")
    check_writable(target)
    _check_apart(model, target)
    if chosen.precision == "auto":
        raise errors.InvalidOptionError(
            "precision 'auto' is decided by the first run of a session, and compiling runs nothing; "
            "choose 'device' or a precision"
        )
    if kind_of(model) is SourceKind.COMPILED:
        raise errors.InvalidOptionError("the model is already compiled; give the original ONNX model")
    model = optional_part("paddle_model_as_onnx")(model, chosen)
    shape_sets = [] if input_shapes is None else list(read_shapes(input_shapes))
    most = max(chosen.max_plans, len(shape_sets), _MOST_PLANS)
    engine_options = replace(chosen, max_plans=most, max_plan_bytes=sys.maxsize, background=False)
    setting = open_setting(default_devices() if devices is None else devices, chosen, sess_options)
    plans = _plan_source(model, setting, engine_options, sess_options)
    engine = PlanEngine(plans, engine_options.deadline_s, sess_options)
    try:
        for shapes in shape_sets or [{}]:
            for name in plans.input_names:
                if name not in plans.defaults:
                    check_known_rank(plans.prepared.graph.value(name), shapes.get(name))
        if chosen.verify is not None:
            checked_shapes: Sequence[Shapes] = shape_sets or [default_shapes(plans.prepared)]
            for checked in checked_shapes:
                engine.run(None, random_feed(model, checked))
            plans.forget_plans()  # plan again: checks may have withdrawn nodes
        leaves_open = input_shapes is None if dynamic_shapes is None else dynamic_shapes
        leaves_open = leaves_open and not plans.is_fixed
        _plan_each(plans, partial(_compile_dynamic if leaves_open else _prepare, plans, shape_sets))
        report = build_report(engine.observed())  # plans assumed shapes if there is no plan
        save(target, plans, report_of, keeps_model=keep_model)
        return report
    finally:
        engine.close()
        setting.trace.finish()


def _check_apart(model: ModelSource, target: Path) -> None:
    if isinstance(model, (str, os.PathLike)) and target.exists() and Path(model).exists() and target.samefile(model):
        raise errors.InvalidOptionError(f"{str(target)!r} is the model, which would be overwritten; give another path")


def _plan_each(source: ModelPlanSource, plan: Callable[[BranchSelection | None], None]) -> None:
    """Plan each combination of branches, and raise the first error only if none has a plan."""
    failures = list[errors.NNAdapterError]()
    for chosen in source.planned_ahead:
        try:
            plan(chosen)
        except (errors.InvalidInputError, errors.InvalidModelError, errors.CompilationError) as error:
            failures.append(error)
    if failures and not source.plans_kept:
        raise failures[0]


def _prepare(source: ModelPlanSource, shape_sets: Sequence[Shapes], chosen: BranchSelection | None) -> None:
    if shape_sets or chosen is not None or not source.plans_kept:
        for shapes in shape_sets or [default_shapes(_prepared(source, chosen))]:
            source.prepare_selection(shapes, chosen)


def _compile_dynamic(source: ModelPlanSource, shape_sets: Sequence[Shapes], chosen: BranchSelection | None) -> None:
    """Compile dynamic-shape plans, or static ones if dynamic ones fail for requested shapes."""
    prepared, initial_count = _prepared(source, chosen), _count_open(source)
    usual = default_shapes(prepared)
    for shapes in shape_sets or [usual]:
        complete = default_shapes(prepared, shapes)
        if not source.make_dynamic(complete, chosen):
            source.prepare_selection(complete, chosen)
    for count, shapes in enumerate(() if shape_sets else further_shapes(prepared, usual)):
        with suppress(errors.NNAdapterError):  # not requested explicitly
            source.make_dynamic(shapes, chosen)
        if count == _TRIES and _count_open(source) == initial_count:
            return


def _count_open(source: ModelPlanSource) -> int:
    return sum(plan.has_dynamic_shapes for plan in source.plans_kept)


def _prepared(source: ModelPlanSource, chosen: BranchSelection | None) -> Prepared:
    return source.prepared if chosen is None else chosen.prepared


def _plan_source(
    model: ModelSource, setting: Setting, options: Options, session_options: onnxruntime.SessionOptions | None
) -> ModelPlanSource:
    try:
        make = ModelPlanSource if options.verify is None else with_checks(ModelPlanSource, options)
        return make(loaded(model, session_options), setting, options, session_options, allows_dynamic=False)
    except BaseException:
        setting.close()
        raise
