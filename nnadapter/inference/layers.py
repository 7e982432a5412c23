"""Layer comparison: the nodes of a model that a device computes wrongly, and pins that avoid them.

Which node of a model a device computes wrongly: `compare --layers`.

Nodes are looked at by atoms (nodes that stand for one thing), in one topological order. A border is a place between two
atoms, with every value that is made before it and read behind it. So what is behind depends on nothing else, and a
difference at a border that is not there at the border before came in by the atom between them.

1. Accumulated: a device computes the model from its inputs up to a border. Bisecting finds two neighboring borders of
   which the first agrees with the CPU and the second does not: log2(n) compilations. It needs no monotony: an error
   may vanish on its way (in Relu, ArgMax), but the outputs differ, so there are two such borders.
2. Local: every atom gets the CPU's values. In place of bisecting once more, edges are cut: all atoms stand side by side
   in one model, whose inputs are the CPU's values. One compilation tells the local error of all of them, nothing
   vanishes, and several wrong ones are all found. Values are held for so many atoms at a time as fit in memory.
3. Where no atom explains by itself what was accumulated, the shortest run of atoms up to that border is looked for
   that is wrong on the CPU's values: log2(n) compilations. With all values inside of it asked for, nothing in it can be
   fused; if that agrees, the device is wrong only where it runs these nodes together. Else error grows, and is told so.
4. What is named was computed once more, as a model of its own, which is the one that is saved.

The CPU's values are computed from the nearest border before that is known, so only few borders are held.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.accuracy.deviation import Deviation, deviation
from nnadapter.accuracy.excerpts import Cutting, HostValues, Trials, Values, cut
from nnadapter.accuracy.localization import SavedFindings, Search, Stretch, first_true, save_stretch
from nnadapter.accuracy.tolerances import Tolerances, quantized_values, shapes_of
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest
from nnadapter.inference.session import InferenceSession
from nnadapter.onnx.files import load_model
from nnadapter.options import Options
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.reports.report import PartitionReport
from nnadapter.rules.reading import read_rules
from nnadapter.rules.values import Pin, Rules

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedRun:
    """What was run, and where."""

    model: str | os.PathLike[str] | bytes | onnx.ModelProto
    requests: Sequence[DeviceRequest]
    """The devices."""
    options: Options
    tolerances: Tolerances
    feed: Values
    expected: Values
    """The CPU's outputs."""
    agrees: bool
    """The outputs of the devices were within the tolerance."""
    report: PartitionReport
    """Where the nodes ran."""


_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Nodes that follow each other on devices, and their largest difference from the CPU."""

    nodes: tuple[str, ...]
    """Names of the model's own nodes; several where they stand for one thing, or were run together."""
    op_types: tuple[str, ...]
    devices: tuple[str, ...]
    deviation: Deviation

    def __str__(self) -> str:
        """The nodes with what is off."""
        off, count = self.deviation, len(self.nodes)
        kinds, places = (", ".join(dict.fromkeys(names)) for names in (self.op_types, self.devices))
        ends = ", ".join(map(repr, self.nodes)) if count < 4 else f"{self.nodes[0]!r} to {self.nodes[-1]!r}"
        kinds = kinds if count < 4 else f"{count} nodes"
        times = "infinitely many" if off.tolerances == inf else f"{off.tolerances:.3g}"
        return f"{ends} ({kinds}) on {places}: {off.value!r} is off by {off.largest_absolute:.3g}, {times} tolerances"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """Pins that make the outputs agree."""

    path: str
    pins: tuple[str, ...]
    """Names of the nodes that are pinned to the CPU."""
    agrees: bool
    """The outputs agree with them; False where they do not even with every node on the CPU."""
    compilations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """Where a device's values leave the CPU's."""

    atoms: int
    """How many groups of nodes that stand for one thing run on devices."""
    outputs_agree: bool
    local_errors: tuple[Finding, ...]
    """Beyond the tolerance on the CPU's values (local error), in topological order."""
    first_accumulated_error: Finding | None
    """The first nodes behind which the device's own values are beyond the tolerance, found by bisecting."""
    shortest_deviating_stretch: Finding | None
    """What is beyond the tolerance on the CPU's values although no node in it is by itself."""
    fused: bool
    """`shortest_deviating_stretch` is beyond it only where the device may run its nodes as one."""
    largest: Finding | None
    """The largest local error, within the tolerance or not."""
    unchecked: tuple[str, ...]
    """Nodes that the device did not run by themselves."""
    compilations: int
    """Models that were compiled for the devices, but for what was saved and ruled out."""
    saved: SavedFindings | None = None
    ruled_out: RuledOut | None = None
    unwritten: str = ""
    """Why a file was not written."""

    @property
    def first(self) -> Finding | None:
        """What is to blame."""
        return next(iter(self.local_errors), None) or self.shortest_deviating_stretch

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        first = self.first
        return {**asdict(self), "first": None if first is None else asdict(first)}

    def __str__(self) -> str:
        """A line for each thing that is known."""
        return "\n".join(f"  {line}" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.atoms:
            yield "layers: no node ran on a device other than cpu and reference, so none was looked at"
            return
        yield f"layers: {self.atoms} on devices, {_counted(self.compilations, 'compilation')}"
        yield from self._culprits()
        if self.local_errors and self.outputs_agree:
            yield "the outputs agree although a node inside differs"
        if self.first_accumulated_error is not None:
            yield f"the device's own values differ first behind {self.first_accumulated_error}"
        if self.unchecked:
            more = len(self.unchecked) - _LISTED
            suffix = f" and {more} more" if more > 0 else ""
            yield f"not run by itself by its device: {', '.join(map(repr, self.unchecked[:_LISTED]))}{suffix}"
        if self.saved is not None:
            yield f"saved in {self.saved.folder}; to see it again: {self.saved.command}"
        if self.ruled_out is not None:
            yield _ruled_out(self.ruled_out)
        if self.unwritten:
            yield f"a file was not written: {self.unwritten}"

    def _culprits(self) -> Iterator[str]:
        if self.local_errors:
            yield f"wrong by itself: {self.local_errors[0]}"
            yield from (f"wrong by itself as well: {finding}" for finding in self.local_errors[1:_LISTED])
            if len(self.local_errors) > _LISTED:
                yield f"and {len(self.local_errors) - _LISTED} more"
        if self.shortest_deviating_stretch is not None:
            yield f"{self._how()}: {self.shortest_deviating_stretch}"
        if not self.local_errors and self.largest is not None:
            which = "no node that could be checked" if self.unchecked else "no node"
            off = self.largest.deviation.largest_absolute
            nearest = f"the largest: {self.largest}" if off else "what they compute is exactly the CPU's"
            yield f"{which} is beyond the tolerance by itself; {nearest}"

    def _how(self) -> str:
        """What is known of `shortest_deviating_stretch`."""
        if self.shortest_deviating_stretch is not None and not {*self.shortest_deviating_stretch.nodes}.isdisjoint(
            self.unchecked
        ):
            return "wrong, with nodes in it that could not be checked by themselves"
        return "wrong only where the device runs them together" if self.fused else "error grows over"


def _ruled_out(ruled_out: RuledOut) -> str:
    count = _counted(len(ruled_out.pins), "pin")
    end = "make" if len(ruled_out.pins) != 1 else "makes"
    outcome = (
        f"{end} the outputs agree" if ruled_out.agrees else "do not make the outputs agree, though nothing is left"
    )
    return f"{ruled_out.path}: {count} to the CPU {outcome}; {_counted(ruled_out.compilations, 'compilation')}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


_MOST_REMOVALS = 64
"""Sets that are tried to leave pins out."""

Group = Sequence[str]
"""Nodes that are pinned together."""


def rule_out(path: Path, compared: ComparedRun, suspects: Sequence[Group]) -> RuledOut:
    """Write a file of rules with the fewest pins to the CPU found that make the outputs agree; the file is tried.

    1. None, where they agree already. Else the fewest of the first of `suspects`: twice as many each time, then
       bisecting between the last two.
    2. Then pins are left out, half of them at once, a quarter, and so on to single ones, as long as outputs agree.

    Args:
        path: the file.
        compared: what was run.
        suspects: groups of nodes to pin, the most likely first; all that run on devices.

    Raises:
        OSError: the file cannot be written.
    """
    trying = _Trying(compared)
    chosen: list[Group] = [] if compared.agrees else without_surplus(_fewest(suspects, trying.agrees), trying.agrees)
    names = tuple(dict.fromkeys(name for group in chosen for name in group))
    path.write_text(_text(names), encoding="utf-8")
    return RuledOut(
        path=str(path), pins=names, agrees=trying.agrees_by(read_rules(path)), compilations=trying.compilations
    )


def without_surplus(pins: list[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    """Leave out what is not needed. Source: A. Zeller, R. Hildebrandt, Simplifying failure-inducing input, 2002."""
    size, budget = len(pins) // 2, _MOST_REMOVALS
    while size and budget > 0:
        start = 0
        while start < len(pins) and budget > 0:
            fewer = pins[:start] + pins[start + size :]
            budget -= 1
            if fewer and agrees(fewer):
                pins = fewer
            else:
                start += size
        size //= 2
    return pins


def _fewest(suspects: Sequence[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    """The first of `suspects`, as many as it takes; all of them where nothing helps."""
    low, high = 0, 1
    while high < len(suspects) and not agrees(suspects[:high]):
        low, high = high, 2 * high
    high = min(high, len(suspects))
    return list(suspects[: first_true(low, high, lambda count: agrees(suspects[:count]))])


class _Trying:
    def __init__(self, compared: ComparedRun) -> None:
        self._compared = compared
        self._rules = Rules() if compared.options.rules is None else read_rules(compared.options.rules)
        self.compilations = 0

    def agrees(self, groups: Sequence[Group]) -> bool:
        """Whether the outputs do with these nodes on the CPU."""
        return self.agrees_by(Rules(pins=tuple(Pin(device=CPU, name=name) for group in groups for name in group)))

    def agrees_by(self, rules: Rules) -> bool:
        """Whether the outputs do with these rules beside the person's own."""
        self.compilations += 1
        compared, user_rules = self._compared, self._rules
        options = replace(
            compared.options, rules=replace(user_rules, pins=(*user_rules.pins, *rules.pins)), fallback="allow"
        )
        with InferenceSession(compared.model, devices=compared.requests, options=options) as session:
            got = session.run(list(compared.expected), compared.feed)
        pairs = zip(compared.expected.items(), got, strict=True)
        allowed = compared.tolerances.of
        return not any(deviation(name, actual, expected, allowed(name)).beyond for (name, expected), actual in pairs)


def _text(names: Sequence[str]) -> str:
    head = "# With these nodes on the CPU the outputs agree; found by `nnadapter compare --layers --rules-out`.\n"
    quoted = (json.dumps(name, ensure_ascii=False) for name in names)
    return head + "".join(f'\n[[pin]]\ndevice = "{CPU}"\nname = {name}\n' for name in quoted)


_MOST_VERIFIED = 4
"""Atoms that are tried in a model of their own until one is wrong there too."""


def search_layers(
    compared: ComparedRun, save: str | os.PathLike[str] | None = None, rules_out: str | os.PathLike[str] | None = None
) -> LayerReport:
    """Return which nodes are wrong.

    Args:
        compared: what was run.
        save: a folder for the tensors and a small model of what is found first.
        rules_out: a file for the smallest set of pins found that makes the outputs agree.
    """
    with closing(open_setting(compared.requests, compared.options)) as setting:
        return _look(compared, _search(compared, setting), save, rules_out)


def _look(
    compared: ComparedRun,
    search: Search,
    save: str | os.PathLike[str] | None,
    rules_out: str | os.PathLike[str] | None,
) -> LayerReport:
    cutting = search.cutting
    errors, unchecked = search.local_errors()
    wrong, shown = _verified(search, [atom for atom, error in sorted(errors.items()) if error.beyond])
    stretch = search.accumulated() if errors and not compared.agrees else None
    explained = stretch is None or any(atom < stretch.end for atom in wrong)
    joint = None if stretch is None or explained else search.shortest_deviating_stretch(stretch)
    fused = joint is not None and not search.stretch(joint.start, joint.end, all_visible=True).deviation.beyond
    members = [] if joint is None else [atom for atom in cutting.accelerated if joint.start <= atom < joint.end]
    ranked = sorted(errors, key=lambda atom: errors[atom].tolerances, reverse=True)
    report = LayerReport(
        atoms=len(cutting.accelerated),
        outputs_agree=compared.agrees,
        local_errors=tuple(_finding(cutting, [atom], errors[atom]) for atom in wrong),
        first_accumulated_error=None if stretch is None else _finding(cutting, [stretch.end - 1], stretch.deviation),
        shortest_deviating_stretch=None if joint is None else _finding(cutting, members, joint.deviation),
        fused=fused,
        largest=_finding(cutting, ranked[:1], errors[ranked[0]]) if errors else None,
        unchecked=cutting.model_node_names(unchecked),
        compilations=search.trials.compilations,
    )
    shown, tolerances = shown or joint, compared.tolerances
    suspects = dict.fromkeys([*wrong, *members, *ranked, *cutting.accelerated])
    try:
        if save is not None and shown is not None:
            report = replace(
                report,
                saved=save_stretch(Path(save), shown, compared.requests, tolerances.relative, tolerances.absolute),
            )
        if rules_out is not None:
            report = replace(report, ruled_out=rule_out(Path(rules_out), compared, _pins(cutting, [*suspects])))
    except (OSError, ValueError) as error:  # a sequence of different shapes is no array
        return replace(report, unwritten=str(error))
    return report


def _search(compared: ComparedRun, setting: Setting) -> Search:
    homes = {node.name: node.device for node in compared.report.nodes if node.device not in ("", *HOSTS)}
    cutting, defaults = cut(load_model(compared.model), shapes_of(compared.feed), homes)
    base_tolerances = compared.tolerances
    tolerances = replace(
        base_tolerances, quantized=base_tolerances.quantized | quantized_values(cutting.graph) - base_tolerances.outputs
    )
    trials = Trials(setting)
    return Search(cutting, tolerances, trials, HostValues(cutting, trials, {**defaults, **compared.feed}))


def _verified(search: Search, atoms: Sequence[int]) -> tuple[Sequence[int], Stretch | None]:
    """The atoms without those at the beginning that are not wrong in a model of their own, and the first one's run."""
    for number, atom in enumerate(atoms[:_MOST_VERIFIED]):
        stretch = search.stretch(atom, atom + 1)
        if stretch.deviation.beyond:
            return atoms[number:], stretch
    return atoms[_MOST_VERIFIED:], None


def _finding(cutting: Cutting, atoms: Sequence[int], error: Deviation) -> Finding:
    return Finding(
        nodes=cutting.model_node_names(atoms),
        op_types=tuple(node.op_type for node in cutting.nodes(atoms)),
        devices=tuple(dict.fromkeys(cutting.devices[atom] for atom in atoms)),
        deviation=error,
    )


def _pins(cutting: Cutting, atoms: Sequence[int]) -> Sequence[Sequence[str]]:
    """Per atom, the names to pin; where it shares all of its nodes, those."""
    return [cutting.model_node_names([atom], unshared=True) or cutting.model_node_names([atom]) for atom in atoms]
