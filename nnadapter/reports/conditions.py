"""How two reports were made, where that differs: what is to be known before their figures are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nnadapter.reports.facts import ReportFacts

_COMMON = 0.5
"""Share of nodes that both reports of one model have by name, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that was not the same when the two reports were made."""

    name: str
    """`model`, `devices`, `options of DEVICE`, `policy`, `fallback`, `inputs`, `choice`, `rules`, `plan file`, `costs`,
    `machine` or `version of NAME`."""
    before: str
    """In words."""
    after: str


def conditions(old: ReportFacts, new: ReportFacts) -> tuple[Condition, ...]:
    """Return what differs in how the reports were made; what one of them does not know is left out."""
    rows = [
        *_nodes(old, new),
        *((name, told(old), told(new)) for name, told in _TOLD),
        *_options(old, new),
        *_versions(old, new),
    ]
    return tuple(
        Condition(name=name, before=before, after=after)
        for name, before, after in rows
        if before and after and before != after
    )


def is_other_model(old: ReportFacts, new: ReportFacts) -> bool:
    """The reports have too few nodes in common to be of one model."""
    return _common(old, new) < _COMMON * min(len(old.nodes), len(new.nodes))


def _common(old: ReportFacts, new: ReportFacts) -> int:
    return len({node.name for node in old.nodes} & {node.name for node in new.nodes})


def _nodes(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    if is_other_model(old, new):
        common = _common(old, new)
        shared = f"of which {common} have a name that both reports have" if common else "of no common name"
        yield "another model", f"{len(old.nodes)} nodes", f"{len(new.nodes)} nodes, {shared}"


def _options(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    """Of devices that both reports have."""
    for device in new.device_options:
        if device in old.device_options:
            before, after = old.device_options[device], new.device_options[device]
            changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            yield f"options of {device}", _said(before, changed), _said(after, changed)


def _versions(old: ReportFacts, new: ReportFacts) -> Iterator[tuple[str, str, str]]:
    """Of what both reports name."""
    for name in new.versions:
        yield f"version of {name}", old.versions.get(name, ""), new.versions[name]


def _said(options: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name}={options.get(name) or 'nothing'}" for name in names)


def _costs(report: ReportFacts) -> str:
    if report.cost is None:
        return "not known"
    return ", ".join(f"{device}: {source}" for device, source in report.cost.sources.items()) or "not said"


def _rules(report: ReportFacts) -> str:
    return "; ".join(rule.text for rule in report.rules) or "none"


_TOLD: tuple[tuple[str, Callable[[ReportFacts], str]], ...] = (
    ("model", lambda report: report.model),
    ("devices", lambda report: ", ".join(report.devices)),
    ("policy", lambda report: report.policy),
    ("fallback", lambda report: report.fallback),
    ("inputs", lambda report: ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())),
    ("choice", lambda report: report.choice_text or "any"),
    ("rules", _rules),
    ("plan file", lambda report: "none" if report.plan_file is None else report.plan_file.path),
    ("costs", _costs),
    ("machine", lambda report: report.machine),
)
"""What reports were made with, in words; empty where a report does not know it."""
