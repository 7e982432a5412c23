"""Distances of layers from a reference, for each layer alone and accumulated from the model's start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnadapter.accuracy.distances import INFINITE, Distance, distance
from nnadapter.accuracy.localization import Piece, Search
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDistance:
    """Distance of a layer's outputs from the reference."""

    position: int
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    devices: tuple[str, ...]
    values: tuple[str, ...]
    alone: Distance | None
    """Distance if the layer reads the reference's values; None if it could not run separately."""
    accumulated: Distance | None
    """Distance if the layer reads values that devices computed."""

    def __str__(self) -> str:
        pairs = [*zip(self.nodes, self.op_types, strict=True)]
        shown = [pair for pair in pairs if not pair[1].endswith(("QuantizeLinear", "DequantizeLinear"))] or pairs
        more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
        return f"{shown[0][0]} ({shown[0][1]}){more} on {', '.join(self.devices)}"


def worst_first(layers: Iterable[LayerDistance]) -> tuple[LayerDistance, ...]:
    """Sort layers by the SQNR of `alone` or, if that is None, of `accumulated`; the lowest is first."""
    return tuple(sorted(layers, key=lambda row: ((row.alone or row.accumulated or INFINITE).sqnr_db, row.position)))


FIGURES = ("SQNR dB", "cosine", "Euclidean", "relative")


def figures(off: Distance | None) -> tuple[str, ...]:
    """Return the figures of a distance as texts, in the order of `FIGURES`; dashes for None."""
    if off is None:
        return ("-",) * len(FIGURES)
    return f"{off.sqnr_db:.1f}", f"{off.cosine:.6f}", f"{off.euclidean:.3g}", f"{off.relative:.3g}"


def layer_lines(layers: Sequence[LayerDistance], most: int) -> Iterator[str]:
    """Yield a table of at most `most` layers."""
    rows: list[tuple[str, ...]] = [("#", *FIGURES, *FIGURES, "layer")]
    rows += [(f"{row.position}", *figures(row.alone), *figures(row.accumulated), str(row)) for row in layers[:most]]
    if layers:
        yield f"{'':8}{'alone':^40} | {'accumulated':^40}"
    for number, *cells, name in rows if layers else ():
        left, right = (" ".join(f"{cell:>9}" for cell in part) for part in (cells[:4], cells[4:]))
        yield f"{number:>6}  {left}  | {right}  {name}"
    if len(layers) > most:
        yield f"{'':6}  and {len(layers) - most} more"


class LayerMeasurement:
    """Collector of layer distances during a search."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._own = dict(search.host.at(0))
        self.layers: list[LayerDistance] = []

    def add(self, piece: Piece) -> None:
        """Record the distances of the atoms of `piece`, for inputs from the CPU and for inputs from devices."""
        cutting, trials = self._search.cutting, self._search.trials
        atoms = [atom for atom in cutting.accelerated if piece.first <= atom < piece.last]
        if not any(atom >= piece.first for atom in cutting.accelerated):
            return
        excerpt = cutting.between(range(piece.first, piece.last), self._own, all_visible=True)
        own = trials.run(excerpt, self._own).values if atoms else trials.run_on_host(excerpt, self._own)
        for atom in atoms:
            nodes = cutting.model_nodes([atom])
            alone, accumulated = (
                self._distance(atom, values, piece.expected) for values in (piece.alone.get(atom), own)
            )
            self.layers.append(LayerDistance(
                position=atom, nodes=tuple(node.name for node in nodes), op_types=tuple(node.op_type for node in nodes),
                devices=(cutting.devices[atom],), values=cutting.visible(atom), alone=alone, accumulated=accumulated,
            ))  # fmt: skip
        retained = cutting.live(piece.last) | self._search.host.at(0).keys()
        self._own = {name: value for name, value in {**self._own, **own}.items() if name in retained}

    def _distance(self, atom: int, got: Any, expected: Any) -> Distance | None:
        cutting = self._search.cutting
        if got is None:
            return None
        return distance_of_values(
            *([cutting.dequantized(name, side[name]) for name in cutting.visible(atom)] for side in (got, expected))
        )


def distance_of_values(got: Sequence[Any], expected: Sequence[Any]) -> Distance | None:
    """Return the distance of arrays and sequences as one vector; None if there are no numbers."""
    reference = _numbers(expected)
    try:
        return distance(_numbers(got), reference) if reference else None
    except ValueError:  # shapes that depend on data
        return INFINITE


def _numbers(values: Iterable[Any]) -> list[Array]:
    members = (member for value in values for member in (value if isinstance(value, list) else [value]))
    return [member for member in members if isinstance(member, np.ndarray) and member.dtype.kind not in "OUS"]
