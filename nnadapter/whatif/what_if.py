"""`nnadapter.what_if`: models and devices -> what a device lacks, ranked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import DeviceNotFoundError, InvalidModelError, InvalidOptionError, NNAdapterError
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.sizes import default_shapes
from nnadapter.options import Options, default_devices, options_from
from nnadapter.paddle_models.keeping import as_onnx
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import SessionDevice, Setting, open_setting
from nnadapter.running.chosen import chosen_by
from nnadapter.whatif.building import facts_of
from nnadapter.whatif.facts import FailedModel
from nnadapter.whatif.report import WhatIf
from nnadapter.whatif.situation import Situation, situation_of
from nnadapter.whatif.sources import model_sources

if TYPE_CHECKING:
    import onnx

Seen = Callable[[str, NNAdapterError | None], None]
"""Told of every model when it was looked at: its name, and the error if it failed."""


def what_if(
    models: str | os.PathLike[str] | bytes | onnx.ModelProto | Sequence[Any],
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    of: str | None = None,
    seen: Seen | None = None,
) -> WhatIf:
    """Return what a device lacks for some models: which feature is worth how much, and which to add first.

    Each feature is tried by placing, cutting and pricing the models as if the device had it; nothing is compiled. What
    a device might fuse with a feature counts as far as `wholes` knows. A model that fails is left out and named
    in `failed`.

    Args:
        models: a path, a folder (every `*.onnx` below it), contents, `onnx.ModelProto`, or a list of these.
        devices: as for `InferenceSession`.
        input_shapes: shapes of inputs by name; of several models, each takes those of its own inputs.
        options: how to decide. By policy `measured` it is what costs predict.
        of: the device that would learn; the first one that is not the CPU if not given.
        seen: called after each model, with its name and its error or None.

    Raises:
        ModelFileError, InvalidModelError: no model can be read, or there is none.
        InvalidInputError: `input_shapes` does not fit the one model.
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: as for `InferenceSession`; no device is named
            that could learn; there is a plan file, which would say where nodes go whatever a device learns.
    """
    chosen = options_from(options)
    if chosen.plan is not None:
        raise InvalidOptionError(
            f"plan {os.fspath(chosen.plan)!r} says where nodes go, whatever a device learns; ask what if without a plan"
        )
    sources = model_sources(models)
    setting = open_setting(default_devices() if devices is None else devices, chosen)
    try:
        target = _learner(setting, of)
        situations: list[Situation] = []
        failed: list[FailedModel] = []
        for name, source in sources:
            error: NNAdapterError | None = None
            try:
                situations.append(
                    _situation(name, source, input_shapes or {}, setting, target, is_single=len(sources) == 1)
                )
            except NNAdapterError as caught:
                error = caught
                failed.append(FailedModel(name=name, error=str(error)))
            if seen is not None:
                seen(name, error)
            if error is not None and len(sources) == 1:
                raise error
    finally:
        setting.close()
    if not situations:
        raise InvalidModelError(f"none of the {len(sources)} models could be read, the first being: {failed[0].error}")
    return facts_of(situations, target.name, chosen.policy, failed)


def _learner(setting: Setting, name: str | None) -> SessionDevice:
    """The device that would learn."""
    able = [device for device in setting.devices if device.accelerates]
    if not able:
        raise InvalidOptionError("what-if asks what a device lacks, and none but the CPU is named; add -d DEVICE")
    for device in able:
        if name in (None, device.name):
            return device
    raise DeviceNotFoundError(
        f"device {name!r} is not among those named, {', '.join(device.name for device in able)}; name one of them"
    )


def _situation(
    name: str,
    source: Any,
    shapes: Mapping[str, Sequence[int]],
    setting: Setting,
    target: SessionDevice,
    *,
    is_single: bool,
) -> Situation:
    prepared = prepare_for(load_model(as_onnx(source)), setting)
    input_shapes = {
        input_name: tuple(int(size) for size in shape)
        for input_name, shape in shapes.items()
        if is_single or input_name in prepared.graph.inputs
    }
    usual = default_shapes(prepared, input_shapes)
    chosen, _ = chosen_by(prepared, usual, {})
    planner = Planner(chosen, setting)
    shapes = usual if chosen is prepared else default_shapes(chosen, input_shapes)
    return situation_of(name, planner.settle(planner.judge(shapes)), target)
