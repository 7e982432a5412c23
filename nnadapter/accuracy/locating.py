"""Which nodes of a step are to blame, where it is off: what `compare --layers` does, for one step of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

from nnadapter.accuracy.cutting import Cutting, cut
from nnadapter.accuracy.searching import Search, Stretch
from nnadapter.accuracy.tolerances import ByPrecision, quantized_values, shapes_of
from nnadapter.accuracy.trials import HostValues, Trials
from nnadapter.ir.operand import DataType
from nnadapter.planning.setting import Setting
from nnadapter.running.deviation import Deviation

if TYPE_CHECKING:
    import onnx

_MOST_TRIED = 8
"""Nodes that are tried in a model of their own; where more are wrong, all of the step is."""
_GROSS = 10.0
"""Over what is allowed. Nodes that are right one by one, and off by less where they run together, are rounded in
another way there; what is off by more in a real number is not rounding."""


class ErrorCause(StrEnum):
    """What is wrong with a step that is off."""

    NODES = "nodes"
    """Nodes of it, each by itself."""
    TOGETHER = "together"
    """Nodes where they run as one, or that could not be looked at one by one."""
    PROGRAM = "program"
    """The program in use, or that one run of it: another one, of the same nodes, agrees with the CPU."""
    NOTHING = "nothing"
    """Every node is within what is allowed by itself; what it is off by adds up, or decides between two that are nearly
    the same."""


@dataclass(frozen=True, eq=False, slots=True)
class ErrorLocation:
    """What was found out of a step that is off."""

    blame: ErrorCause
    nodes: tuple[str, ...] = ()
    deviation: Deviation | None = None
    """Of these nodes."""
    stretches: tuple[Stretch, ...] = ()
    """What shows it, in models of their own."""
    reproducer: str = ""
    """Where such a model lies; empty where none was kept."""


def locate(
    setting: Setting, model: onnx.ModelProto, device: str, inputs: Mapping[str, Any], precision: DataType
) -> ErrorLocation:
    """Find what is wrong with a step.

    Args:
        setting: of the session.
        model: the step's nodes; names are those of the plan.
        device: that has it.
        inputs: of the step, in the run in which it was off.
        precision: in what the device computes.
    """
    homes = {node.name: device for node in model.graph.node}
    cutting, defaults = cut(_at(model, inputs), shapes_of(inputs), homes)
    dtypes = {name: value.dtype or "" for name, value in cutting.graph.values.items()}
    allowed = ByPrecision(precision=precision, dtypes=dtypes, quantized=quantized_values(cutting.graph))
    trials = Trials(setting)
    search = Search(cutting, allowed, trials, HostValues(cutting, trials, {**defaults, **inputs}))
    errors, unchecked = search.alone()
    beyond = [atom for atom, error in sorted(errors.items()) if error.beyond]
    if len(beyond) <= _MOST_TRIED:
        stretches = tuple(
            filter(lambda stretch: stretch.deviation.beyond, (search.stretch(at, at + 1) for at in beyond))
        )
        if stretches:
            return _located(ErrorCause.NODES, cutting, stretches)
    full_stretch = search.stretch(0, len(cutting.devices))
    if not full_stretch.deviation.beyond:
        return ErrorLocation(ErrorCause.PROGRAM)
    if len(beyond) > _MOST_TRIED:
        return _located(ErrorCause.TOGETHER, cutting, (full_stretch,))
    accumulated_stretch = search.accumulated()
    joint = search.together(accumulated_stretch)
    inside = range(joint.start, joint.end)
    if set(unchecked) & set(inside) or _is_no_number(cutting, joint) or _only_fused(search, cutting, joint):
        return _located(ErrorCause.TOGETHER, cutting, (joint,))
    return ErrorLocation(ErrorCause.NOTHING, deviation=joint.deviation)


def _is_no_number(cutting: Cutting, joint: Stretch) -> bool:
    """Whether it makes no number, or an infinite one, of what is one: nothing that rounding adds up to."""
    return _is_real(cutting, joint) and joint.deviation.tolerances == inf


def _is_real(cutting: Cutting, joint: Stretch) -> bool:
    value = cutting.graph.values.get(joint.deviation.value)
    return value is not None and "float" in (value.dtype or "")


def _only_fused(search: Search, cutting: Cutting, joint: Stretch) -> bool:
    """Whether it is wrong where its nodes run as one, and right where they do not."""
    is_gross = _is_real(cutting, joint) and joint.deviation.tolerances > _GROSS and not quantized_values(cutting.graph)
    return is_gross and not search.stretch(joint.start, joint.end, all_visible=True).deviation.beyond


def _located(blame: ErrorCause, cutting: Cutting, stretches: Sequence[Stretch]) -> ErrorLocation:
    atoms = [atom for stretch in stretches for atom in range(stretch.start, stretch.end)]
    worst = max((stretch.deviation for stretch in stretches), key=lambda stretch: stretch.tolerances)
    return ErrorLocation(blame, cutting.own_names(atoms), worst, tuple(stretches))


def _at(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with its inputs as large as they are in hand, and nothing said of other sizes."""
    sized = type(model)()
    sized.CopyFrom(model)
    del sized.graph.value_info[:]
    for row in sized.graph.input:
        if row.name in inputs and row.type.HasField("tensor_type"):
            shape = row.type.tensor_type.shape
            del shape.dim[:]
            for size in shapes_of({row.name: inputs[row.name]}).get(row.name, ()):
                shape.dim.add().dim_value = size
    for row in sized.graph.output:
        if row.type.HasField("tensor_type"):
            row.type.tensor_type.ClearField("shape")
    return sized
