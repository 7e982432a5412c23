"""Op types of the model, with where their nodes run: a table of the text report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nnadapter.onnx.domains import op_name
from nnadapter.reports.facts import ReportFacts

_SHOWN = 25
_COLUMN = 9
_ENDS = ("folded", "unused")


@dataclass(slots=True)
class _OpTypeRow:
    where: Counter[str] = field(default_factory=Counter)
    """Nodes by device, or by how they end."""
    flops: Counter[str] = field(default_factory=Counter)
    """By device."""


def op_type_lines(report: ReportFacts) -> Iterator[str]:
    """Return a table: per op type, nodes in all, on each device, folded and unused, and the share of FLOPs.

    The op types with most FLOPs come first, then those with most nodes. The last rows are sums: of nodes, and of the
    devices' shares of FLOPs.
    """
    rows = _rows(report)
    ordered = sorted(rows.items(), key=lambda item: (-item[1].flops.total(), -item[1].where.total(), item[0]))
    sums = _OpTypeRow()
    for row in rows.values():
        sums.where.update(row.where)
        sums.flops.update(row.flops)
    columns = [*report.devices, *(end for end in _ENDS if sums.where[end])]
    width = max(len("op type"), *(len(name) for name, _ in ordered[:_SHOWN])) + 1 if ordered else 8
    yield _line("op type", ["nodes", *columns, "FLOPs"], width)
    for name, row in ordered[:_SHOWN]:
        yield _line(name, [*_counts(row, columns), _share(row.flops.total(), sums)], width)
    if len(ordered) > _SHOWN:
        yield f"... and {len(ordered) - _SHOWN} more; the JSON form has every node"
    yield _line("all", _counts(sums, columns), width)
    if sums.flops.total():
        shares = [_share(sums.flops[name], sums) if name in report.devices else "" for name in columns]
        yield _line("FLOPs", ["", *shares], width).rstrip()


def _rows(report: ReportFacts) -> dict[str, _OpTypeRow]:
    kinds: dict[tuple[str, str, str, str], list[int]] = {}
    for node in report.nodes:
        kinds.setdefault((node.domain, node.op_type, node.device, node.state), []).append(node.flops or 0)
    rows: dict[str, _OpTypeRow] = {}
    for (domain, op_type, device, state), flops in kinds.items():
        row = rows.setdefault(op_name(domain, op_type), _OpTypeRow())
        row.where[device or state] += len(flops)
        row.flops[device] += sum(flops)
    return rows


def _counts(row: _OpTypeRow, columns: Sequence[str]) -> list[str]:
    return [str(row.where.total()), *(str(row.where[name] or "-") for name in columns)]


def _share(flops: int, sums: _OpTypeRow) -> str:
    return f"{flops / sums.flops.total():.1%}" if flops else "-"


def _line(name: str, cells: Sequence[str], width: int) -> str:
    return f"{name:<{width}}" + "".join(f"{cell:>{max(_COLUMN, len(cell) + 2)}}" for cell in cells)
