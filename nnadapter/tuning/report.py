"""Report of a tuning: text, JSON and an HTML page with the curve of time against drop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from nnadapter.options import Options
from nnadapter.records import dataclass, field
from nnadapter.report.facts import plain
from nnadapter.report.html import static_page, table
from nnadapter.report.sections import count, duration
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.selection import DeviceRequest

_LISTED = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedUnit:
    """Unit of a tuned model: nodes with the same device and precision."""

    name: str
    nodes: tuple[str, ...]
    device: str
    precision: str
    damage_alone_db: float | None
    """SQNR if only this unit is quantized (a float unit: by its fastest alternative); None if not measured."""
    damage_in_place_db: float | None
    """SQNR of noise that this unit in floating precision would remove; None if not measured."""
    saved_seconds: float
    """Predicted gain over the device's floating precision."""
    reason: str
    """Reason not to quantize it; empty if it is quantized."""

    @property
    def is_quantized(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """Measured configuration."""

    seconds: float
    score: float
    drop: float
    sqnr_db: float
    device: str
    precision: str
    allowed: bool
    is_best: bool = False
    on_front: bool = False
    """True if no other is at least as good in time and score."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuneReport:
    """Result of `nnadapter.tune`. Times are seconds per sample."""

    budget: str
    baseline: float
    """Metric of float32 on the CPU; infinite without a metric."""
    achieved: float
    """Metric of the result, or SQNR of its worst output in dB."""
    drop: float
    held_out_baseline: float | None
    """Metric of float32 on samples that the search did not use; None if there are too few."""
    held_out: float | None
    time: float
    cpu_time: float
    """Time of float32 on the CPU."""
    float_time: float
    """Time of float32 on the devices; `cpu_time` if none computes in it."""
    bound: float
    """Lower bound of the time at the permitted noise, assuming that times and noise of units add up."""
    gap: float
    """Excess of the predicted time over `bound`, as a fraction."""
    evaluations: int
    """Number of measurements of the metric."""
    trials: int
    """Number of compiled configurations, including configurations of single units."""
    seconds: float
    samples: int
    devices: tuple[str, ...]
    units: tuple[TunedUnit, ...]
    pareto: tuple[ParetoPoint, ...]
    """All measured configurations, fastest first."""
    stopped: str = ""
    """Why the search ended early; empty if it did not."""
    failures: tuple[str, ...] = ()
    """Alternatives that a device could not run."""
    command: str = ""
    output: str = ""
    model: onnx.ModelProto = field(repr=False)
    requests: Sequence[DeviceRequest] = field(repr=False)
    options: Options = field(repr=False)

    def session(self) -> InferenceSession:
        """Open a session of the tuned model."""
        return InferenceSession(self.model, devices=self.requests, options=self.options)

    def to_dict(self) -> dict[str, Any]:
        left_out = ("model", "requests", "options")
        facts = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        return {**facts, "units": list(map(plain, self.units)), "pareto": list(map(plain, self.pareto))}

    def to_json(self) -> str:
        """Return JSON text with null for infinite numbers."""
        return json.dumps(plain(self.to_dict()), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """Return a page with a chart of configurations and a table of units."""
        subtitle, *summary = self._summary()
        parts = (
            *(f"<p>{escape(line)}</p>" for line in summary),
            f"<h2>Measured configurations</h2>{_chart(self.pareto)}<p>{_COLORS}</p>",
            f"<h2>Units</h2>{table([(head, False) for head in _HEADS], [_cells(unit) for unit in self.units])}",
        )
        return static_page("Tuning", "Tuned precision", subtitle, f"<section>{''.join(parts)}</section>")

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._table()])

    def _summary(self) -> Iterator[str]:
        yield (
            f"time      {duration(self.time)} on {', '.join(self.devices)}: {self.cpu_time / self.time:.2f} times as "
            f"fast as float32 on the CPU, {self.float_time / self.time:.2f} times as fast as float32 on the devices"
        )
        held_out, has_held_out = _number(self.held_out), self.held_out is not None
        if math.isinf(self.baseline):
            held = f", {held_out} dB on held-out samples" if has_held_out else ""
            yield f"accuracy  SQNR against float32 {_number(self.achieved)} dB{held}; budget: {self.budget}"
        else:
            held = f", {_number(self.held_out_baseline)} -> {held_out} on held-out samples" if has_held_out else ""
            yield f"accuracy  metric {_number(self.baseline)} -> {_number(self.achieved)}{held}; budget: {self.budget}"
        yield f"units     {sum(unit.is_quantized for unit in self.units)} of {len(self.units)} are quantized"
        yield (
            f"bound     at least {duration(self.bound)} within the budget if times and noise of units add up; the "
            f"result is within {self.gap:.1%} of it"
        )
        yield (
            f"search    {count(self.evaluations, 'evaluation')} and {count(self.trials, 'compilation')} in "
            f"{duration(self.seconds)}"
        )
        if self.stopped:
            yield f"the search ended early: {self.stopped}"
        yield from (f"failed    {failure}" for failure in self.failures)
        if self.output:
            yield f"written: {self.output}"
            if self.output.endswith(".plan.json"):
                model, _, plan = self.output.partition(" and ")
                yield f"run it with: nnadapter run {model} -d {','.join(self.devices)} --plan {plan}"
        if self.command:
            yield f"repeat it with: {self.command}"

    def _table(self) -> Iterator[str]:
        listed = sorted(self.units, key=lambda unit: (unit.is_quantized, -unit.saved_seconds))
        rows = [_HEADS, *map(_cells, listed[:_LISTED])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        if len(self.units) > _LISTED:
            yield f"and {len(self.units) - _LISTED} more; JSON has all"
        yield "SQNR alone, in dB: only this unit is quantized; in place: the noise that it adds to the other units"


def _number(value: float | None) -> str:
    return "" if value is None else "inf" if math.isinf(value) else f"{value:.4g}"


_HEADS = ("unit", "device", "precision", "SQNR alone", "in place", "time saved", "why not quantized")


def _cells(unit: TunedUnit) -> tuple[str, ...]:
    alone, in_place = _number(unit.damage_alone_db), _number(unit.damage_in_place_db)
    return unit.name, unit.device, unit.precision, alone, in_place, duration(unit.saved_seconds), unit.reason


_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_COLORS = "Green: chosen. Blue: within the budget. Red: over it. Large: no other is better in time and accuracy."


def _chart(points: Sequence[ParetoPoint]) -> str:
    """Return an SVG of time against drop, or against SQNR without a metric."""
    shown = [point for point in points if math.isfinite(point.seconds) and math.isfinite(point.sqnr_db)]
    losses = [point.drop if math.isfinite(point.drop) else -point.sqnr_db for point in shown]
    if not shown:
        return "<p>no configuration with a finite drop was measured</p>"
    left, right = min(losses), max(losses)
    top = max(point.seconds for point in shown) * 1.1

    dots = []
    for point, loss in zip(shown, losses, strict=True):
        x = _MARGIN + (loss - left) / ((right - left) or 1) * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - point.seconds / top * (_HEIGHT - 2 * _MARGIN)
        color = "#0a7" if point.is_best else "#36c" if point.allowed else "#c55"
        radius = 7 if point.is_best else 5 if point.on_front else 3
        figures = f"{duration(point.seconds)}, score {_number(point.score)}, SQNR {_number(point.sqnr_db)} dB"
        title = escape(f"{figures}, {point.precision} on {point.device}")
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"><title>{title}</title></circle>')
    has_metric = all(math.isfinite(point.drop) for point in shown)
    axis = f"drop of the metric: {left:.4g} to {right:.4g}" if has_metric else f"SQNR: {-left:.4g} to {-right:.4g} dB"
    bottom = _HEIGHT - _MARGIN
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="12" fill="currentColor" role="img" '
        'aria-label="time against drop">'
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="currentColor"/>'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{axis}</text>'
        f'<text x="8" y="{_MARGIN - 16}">time: 0 to {duration(top)}</text>{"".join(dots)}</svg>'
    )
