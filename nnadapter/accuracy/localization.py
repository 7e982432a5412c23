"""Localization of errors: a search for the nodes that exceed their tolerance, and findings saved as models."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy.deviation import Deviation, deviation, largest
from nnadapter.accuracy.excerpts import Cutting, Excerpt, HostValues, Trials, Values, cut, pieces
from nnadapter.accuracy.tolerances import ByPrecision, ValueTolerances, quantized_values, shapes_of
from nnadapter.drivers.selection import DeviceRequest, canonical
from nnadapter.ir.operand import DataType
from nnadapter.planning.setting import Setting

if TYPE_CHECKING:
    import onnx


_PIECE_BYTES = 1 << 28
"""Of values that are held to look at every atom by itself."""


def first_true(low: int, high: int, test: Callable[[int], bool]) -> int:
    """A number above `low` up to `high` for which `test` is true and false for the one before.

    It is taken to be false for `low` and true for `high`, and may change its mind between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return high


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Atoms that follow each other, computed on their devices."""

    start: int
    """The first atom."""
    end: int
    """The one behind the last."""
    excerpt: Excerpt
    feed: Values
    got: Values
    expected: Values
    """The CPU's values behind the last atom."""
    deviation: Deviation


@dataclass(frozen=True, eq=False)
class Search:
    """Compares parts of one model on devices with the CPU."""

    cutting: Cutting
    tolerances: ValueTolerances
    trials: Trials
    host: HostValues

    def local_errors(self) -> tuple[Mapping[int, Deviation], tuple[int, ...]]:
        """Per atom on a device its local error, and the atoms whose device did not run them by themselves."""
        deviations: dict[int, Deviation] = {}
        unchecked_atoms: list[int] = []
        for first, last in pieces(self.cutting, _PIECE_BYTES):
            atoms = [atom for atom in self.cutting.accelerated if first <= atom < last]
            if atoms:
                values = self.host.inside(first, last)
                unchecked_atoms += self._side_by_side(atoms, values, deviations)
        return deviations, tuple(unchecked_atoms)

    def accumulated(self) -> Stretch:
        """The device's own values from the inputs to the first border found at which they differ.

        They are taken to differ behind the last atom.
        """
        atoms = self.cutting.accelerated
        stretches: dict[int, Stretch] = {}

        def differs(number: int) -> bool:
            stretches[number] = self.stretch(0, atoms[number] + 1)
            return stretches[number].deviation.beyond > 0

        number = first_true(-1, len(atoms) - 1, differs)
        return stretches.get(number) or self.stretch(0, atoms[number] + 1)

    def shortest_deviating_stretch(self, stretch: Stretch) -> Stretch:
        """The shortest stretch found with the same end that differs on the CPU's values, as `stretch` does."""
        atoms = [atom for atom in self.cutting.accelerated if atom < stretch.end]
        stretches: dict[int, Stretch] = {}

        def agrees(number: int) -> bool:
            stretches[number] = self.stretch(atoms[number], stretch.end)
            return not stretches[number].deviation.beyond

        number = first_true(0, len(atoms) - 1, agrees) - 1
        return stretches.get(number) or self.stretch(atoms[0], stretch.end)

    def stretch(self, start: int, end: int, *, all_visible: bool = False) -> Stretch:
        """Compute the atoms from `start` to before `end` on their devices, on the CPU's values at the first border.

        Args:
            start: the first atom.
            end: the one behind the last.
            all_visible: let no value be inside of what the device may fuse.
        """
        start_values = self.host.at(start)
        excerpt = self.cutting.between(range(start, end), start_values, all_visible=all_visible)
        got, end_values = self.trials.run(excerpt, start_values).values, self.host.at(end)
        expected = {name: end_values[name] for name in got if name in end_values}
        feed = {name: start_values[name] for name in excerpt.inputs}
        return Stretch(start, end, excerpt, feed, got, expected, self._largest(got, expected))

    def _side_by_side(self, atoms: Sequence[int], values: Values, deviations: dict[int, Deviation]) -> Iterator[int]:
        """Fill in what atoms are off by; those that their device did not run are tried once more in halves."""
        excerpt = self.cutting.side_by_side(atoms, values)
        outcome = self.trials.run(excerpt, values)
        missed = []
        for atom in atoms:
            if {node.name for node in self.cutting.nodes([atom])} & outcome.elsewhere:
                missed.append(atom)
            else:
                deviations[atom] = self._largest(outcome.values, {n: values[n] for n in self.cutting.visible(atom)})
        if len(atoms) == 1:
            yield from missed
        elif missed:
            half = (len(missed) + 1) // 2
            for part in (missed[:half], missed[half:]):
                if part:
                    yield from self._side_by_side(part, values, deviations)

    def _largest(self, got: Values, expected: Values) -> Deviation:
        compared = [
            deviation(name, got[name], expected_value, self.tolerances.of(name))
            for name, expected_value in expected.items()
        ]
        return largest(compared or [Deviation(value="")])


MODEL = "model.onnx"
COMMAND = "command.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFindings:
    """What was found, as files."""

    folder: str
    command: str
    """What shows it again."""


def save_stretch(
    folder: Path, stretch: Stretch, requests: Sequence[DeviceRequest], relative: float, absolute: float
) -> SavedFindings:
    """Write what shows `stretch` again, and return where it lies.

    1. `model.onnx` is the nodes as a model of their own, for the shapes in hand.
    2. `input_0.npy` and so on are the CPU's values that they read; `expected_0.npy` and `got_0.npy` what the CPU and
       the device make of them, in the order of the model's outputs.
    3. `command.txt` is the command that shows the difference.

    Args:
        folder: is made.
        stretch: what was found.
        requests: the devices.
        relative: what is allowed of floating-point outputs, see `Tolerance`.
        absolute: the same.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(stretch.excerpt.model.SerializeToString())
    inputs = _write(folder, "input", stretch.feed)
    _write(folder, "expected", stretch.expected)
    _write(folder, "got", stretch.got)
    devices = {*stretch.excerpt.devices.values()}
    requests = [request for request in requests if _name(request) in devices]
    words = ["nnadapter", "compare", str(folder / MODEL), *_device_words(requests)]
    words += [word for name, path in inputs for word in ("--input", f"{name}={path}")]
    words += ["--rtol", f"{relative:g}", "--atol", f"{absolute:g}"]
    command = shlex.join(words)
    (folder / COMMAND).write_text(f"{command}\n")
    return SavedFindings(folder=str(folder), command=command)


def _write(folder: Path, kind: str, values: Values) -> list[tuple[str, Path]]:
    paths = [(name, folder / f"{kind}_{number}.npy") for number, name in enumerate(values)]
    for name, path in paths:
        np.save(path, values[name])
    return paths


def _device_words(requests: Sequence[DeviceRequest]) -> Iterator[str]:
    for request in requests:
        yield from ("-d", request if isinstance(request, str) else request[0])
    for name, options in (request for request in requests if not isinstance(request, str)):
        for option, value in options.items():
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            yield from ("--option", f"{name}.{option}={text}")


def _name(request: DeviceRequest) -> str:
    return canonical(request if isinstance(request, str) else request[0])


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
    errors, unchecked = search.local_errors()
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
    joint = search.shortest_deviating_stretch(accumulated_stretch)
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
    return ErrorLocation(blame, cutting.model_node_names(atoms), worst, tuple(stretches))


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
