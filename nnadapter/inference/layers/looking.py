"""Looks into one model with one feed: what `compare --layers` does, in its order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from nnadapter.accuracy.cutting import Cutting, cut
from nnadapter.accuracy.saving import save_stretch
from nnadapter.accuracy.searching import Search, Stretch
from nnadapter.accuracy.tolerances import quantized_values, shapes_of
from nnadapter.accuracy.trials import HostValues, Trials
from nnadapter.drivers.selection import HOSTS
from nnadapter.inference.layers.compared import ComparedRun
from nnadapter.inference.layers.findings import Finding, LayerReport
from nnadapter.inference.layers.ruling_out import rule_out
from nnadapter.onnx.files import load_model
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.running.deviation import Deviation

_MOST_VERIFIED = 4
"""Atoms that are tried in a model of their own until one is wrong there too."""


def look(
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
    errors, unchecked = search.alone()
    wrong, shown = _verified(search, [atom for atom, error in sorted(errors.items()) if error.beyond])
    stretch = search.accumulated() if errors and not compared.agrees else None
    explained = stretch is None or any(atom < stretch.end for atom in wrong)
    joint = None if stretch is None or explained else search.together(stretch)
    fused = joint is not None and not search.stretch(joint.start, joint.end, all_visible=True).deviation.beyond
    members = [] if joint is None else [atom for atom in cutting.accelerated if joint.start <= atom < joint.end]
    ranked = sorted(errors, key=lambda atom: errors[atom].tolerances, reverse=True)
    report = LayerReport(
        atoms=len(cutting.accelerated),
        outputs_agree=compared.agrees,
        alone=tuple(_finding(cutting, [atom], errors[atom]) for atom in wrong),
        accumulated=None if stretch is None else _finding(cutting, [stretch.end - 1], stretch.deviation),
        together=None if joint is None else _finding(cutting, members, joint.deviation),
        fused=fused,
        largest=_finding(cutting, ranked[:1], errors[ranked[0]]) if errors else None,
        unchecked=cutting.own_names(unchecked),
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
        nodes=cutting.own_names(atoms),
        op_types=tuple(node.op_type for node in cutting.nodes(atoms)),
        devices=tuple(dict.fromkeys(cutting.devices[atom] for atom in atoms)),
        deviation=error,
    )


def _pins(cutting: Cutting, atoms: Sequence[int]) -> Sequence[Sequence[str]]:
    """Per atom, the names to pin; where it shares all of its nodes, those."""
    return [cutting.own_names([atom], unshared=True) or cutting.own_names([atom]) for atom in atoms]
