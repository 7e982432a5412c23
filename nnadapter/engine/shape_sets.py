"""Sets of input shapes that a dynamic plan serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import Bounds
from nnadapter.process.resources import Cache, new_lock
from nnadapter.records import dataclass

if TYPE_CHECKING:
    from nnadapter.ir.structure import GuardedShapes
    from nnadapter.ir.symbolic_numbers import SymbolicTrace

ShapeTest = Callable[[Shapes], tuple[bool, Sequence[Any] | None]]
"""Returns whether a plan serves shapes of all inputs, and the symbolic sizes for programs."""
_MOST_PROBED = 256


class ProbedBounds:
    """Bounds on the sizes that a plan serves. Thread-safe.

    If `holds` accepts shapes outside of the bounds, the bounds are widened to include them. `agreeing` makes the new
    bounds consistent over inputs: a mask of size 1 contradicts a cache of size 0.
    """

    def __init__(self, bounds: Bounds, holds: Callable[[Shapes], bool], agreeing: Callable[[Shapes], Shapes]) -> None:
        self.current = bounds
        self.widened = 0
        self._holds, self._agreeing = holds, agreeing
        self._probed: Cache[object, bool] = Cache("shapes beyond bounds", _MOST_PROBED)
        self._widening = new_lock()

    def hold(self, shapes: Shapes) -> bool:
        if self.current.hold(shapes):
            return True
        holds = self._probe(shapes)
        if holds:
            self._widen(shapes)
        return holds

    def _probe(self, shapes: Shapes) -> bool:
        return self._probed.get_or_make(tuple(shapes.values()), lambda: self._holds(shapes))

    def _widen(self, shapes: Shapes) -> None:
        with self._widening:
            wider = self.current.widened(shapes)
            known_shapes = (shapes, *self.current.ends)
            ends = [self._agreeing(end) for end in wider.ends if end not in known_shapes]
            if all(map(self._probe, ends)):
                self.current = wider
                self.widened += 1


@dataclass(frozen=True, eq=False)
class ShapeSet:
    """Shapes for which all of these conditions hold."""

    guards: GuardedShapes | None
    limits: Bounds | ProbedBounds | None
    """Bounds within which all sizes work, for devices with unknown guards; None if all sizes are served."""
    vicinity: Bounds | None = None
    """Sizes near those at which costs were compared; None for all sizes."""
    holds_indices: Callable[[Shapes], bool] | None = None
    """Checks that indices computed from shapes are in range; None if they always are."""

    @property
    def bounds(self) -> Bounds | None:
        return self.limits.current if isinstance(self.limits, ProbedBounds) else self.limits

    @property
    def trace(self) -> SymbolicTrace | None:
        return None if self.guards is None else self.guards.trace

    @property
    def gives_sizes(self) -> bool:
        """True if every run must pass values that follow from input shapes to segments."""
        return self.guards is not None and bool(self.guards.contents.names)

    def match(self, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Return whether the plan serves these shapes, and their symbolic sizes. A probe may widen bounds."""
        return self._match(shapes, self.limits)

    def test(self, declares: Callable[[Shapes], bool]) -> ShapeTest:
        """Return a test of shapes that never probes. `declares` checks shapes against the declared inputs."""
        if self.guards is not None and not (self.limits or self.vicinity or self.holds_indices):
            return self.guards.match  # guards cover every dimension
        return lambda shapes: self._match(shapes, self.bounds) if declares(shapes) else (False, None)

    def why_not(self, shapes: Shapes) -> str:
        """Return a text on the first condition that these shapes violate."""
        if self.vicinity is not None and not self.vicinity.hold(shapes):
            return "sizes are far from the ones at which costs were compared"
        failed = "" if self.guards is None else self.guards.failed_guard(shapes)
        is_fixed = isinstance(self.limits, Bounds)
        outside = "sizes are outside of the bounds that were checked"
        return failed or (outside if is_fixed else "other nodes remain after folding")

    def _match(self, shapes: Shapes, limits: Bounds | ProbedBounds | None) -> tuple[bool, Sequence[Any] | None]:
        sizes = None if self.guards is None else self.guards.sizes(shapes)
        holds = (
            (self.guards is None or sizes is not None)
            and (self.vicinity is None or self.vicinity.hold(shapes))
            and (limits is None or limits.hold(shapes))
            and (self.holds_indices is None or self.holds_indices(shapes))
        )
        return holds, sizes
