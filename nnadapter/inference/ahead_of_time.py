"""Ahead-of-time compilation of a model into one file: `nnadapter.compile`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.accuracy.checks import with_checks
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.engine.engine import PlanEngine
from nnadapter.engine.model_source import ModelPlanSource, loaded
from nnadapter.engine.saving import save
from nnadapter.errors import CompilationError, InvalidInputError, InvalidModelError, InvalidOptionError, NNAdapterError
from nnadapter.files.atomic_files import check_writable, is_special
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.offering.feeds import random_feed
from nnadapter.onnx.preparation.default_sizes import check_known_rank, default_shapes, further_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes, read_shapes
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, options_from
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.reports.builder import report_of
from nnadapter.reports.observed_report import build_report
from nnadapter.reports.report import PartitionReport

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from nnadapter.engine.branches import Chosen


_TRIES = 1
"""Shapes that are tried beside usual ones where sizes cannot be left open at these."""
_MOST_PLANS = 64


def compile(  # noqa: A001  as people call it: nnadapter.compile
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
    """Compile a model for devices, and write all that running it needs as one file, for `InferenceSession(out)`.

    Args:
        model: path of an ONNX file or a Paddle model, contents, or an `onnx.ModelProto`.
        out: path of the file, which takes the place of one that is there when it is complete.
        devices: as `InferenceSession` takes them. With fallback forbidden, the file holds nothing for the CPU in the
            place of a device.
        input_shapes: one set of input shapes, or several; usual ones if None, where the model leaves them open.
        dynamic_shapes: plans serve all shapes of the class that theirs are of, where the devices can: those of
            `input_shapes`, and of shapes at which a model is likely to be run if these are None. Without, there is one
            plan for each set of shapes. None: where no shapes are given and the model leaves them open.
        options: how nodes are placed; see `Options`. With `verify`, programs are checked on seeded numbers.
        sess_options: ONNX Runtime's own, for what is compiled for the CPU.
        keep_model: the model goes in too, and the CPU runs it at shapes that the file has no plan for.

    Returns:
        What runs where, of the last set of shapes.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        CompiledModelError: the file cannot be written, or something has no form in files.
        InvalidOptionError: an option or a path does not fit.
        NotDelegatedError, CompilationError: fallback is forbidden and would be needed.
    """
    chosen, target = options_from(options), Path(out)
    if is_special(target):
        raise InvalidOptionError(f"{str(target)!r} is a device or a pipe; give the path of a file, which can be mapped")
    check_writable(target)
    _check_apart(model, target)
    if kind_of(model) is SourceKind.COMPILED:
        raise InvalidOptionError("the model is compiled already; give the ONNX model that it was made of")
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
            plans.forget_plans()  # what a device computes wrongly was taken from it
        leaves_open = input_shapes is None if dynamic_shapes is None else dynamic_shapes
        leaves_open = leaves_open and not plans.is_fixed
        _plan_each(plans, partial(_compile_dynamic if leaves_open else _prepare, plans, shape_sets))
        report = build_report(engine.observed())  # makes a plan for usual shapes if there is none
        save(target, plans, report_of, keeps_model=keep_model)
        return report
    finally:
        engine.close()
        setting.trace.finish()


def _check_apart(model: str | os.PathLike[str] | bytes | onnx.ModelProto, target: Path) -> None:
    """Refuse to put the file in the place of the model that it is made of."""
    if isinstance(model, (str, os.PathLike)) and target.exists() and Path(model).exists() and target.samefile(model):
        raise InvalidOptionError(f"{str(target)!r} is the model itself, which would be lost; give another path")


def _plan_each(source: ModelPlanSource, plan: Callable[[Chosen | None], None]) -> None:
    """Make the plans of each choice; what no input may choose contradicts itself perhaps, as long as others do not."""
    errors = list[NNAdapterError]()
    for chosen in source.ahead:
        try:
            plan(chosen)
        except (InvalidInputError, InvalidModelError, CompilationError) as error:
            errors.append(error)
    if errors and not source.plans_kept:
        raise errors[0]


def _prepare(source: ModelPlanSource, shape_sets: Sequence[Shapes], chosen: Chosen | None) -> None:
    """Make plans of a choice at shapes that are wanted, or else at usual ones."""
    if shape_sets or chosen is not None or not source.plans_kept:
        for shapes in shape_sets or [default_shapes(_prepared(source, chosen))]:
            source.prepare_choice(shapes, chosen)


def _compile_dynamic(source: ModelPlanSource, shape_sets: Sequence[Shapes], chosen: Chosen | None) -> None:
    """Make plans that leave sizes open, for shapes that are wanted or else likely; plans of their own for others."""
    prepared, initial_count = _prepared(source, chosen), _count_open(source)
    usual = default_shapes(prepared)
    for shapes in shape_sets or [usual]:
        complete = default_shapes(prepared, shapes)
        if not source.open_for(complete, chosen):
            source.prepare_choice(complete, chosen)
    for count, shapes in enumerate(() if shape_sets else further_shapes(prepared, usual)):
        with suppress(NNAdapterError):  # nobody asked for these
            source.open_for(shapes, chosen)
        if count == _TRIES and _count_open(source) == initial_count:
            return


def _count_open(source: ModelPlanSource) -> int:
    return sum(plan.has_dynamic_shapes for plan in source.plans_kept)


def _prepared(source: ModelPlanSource, chosen: Chosen | None) -> Prepared:
    return source.prepared if chosen is None else chosen.prepared


def _plan_source(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    setting: Setting,
    options: Options,
    session_options: onnxruntime.SessionOptions | None,
) -> ModelPlanSource:
    try:
        make = ModelPlanSource if options.verify is None else with_checks(ModelPlanSource, options)
        return make(loaded(model, session_options), setting, options, session_options, may_leave_open=False)
    except BaseException:
        setting.close()
        raise
