"""One plan that leaves sizes open: at which shapes of inputs it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnadapter.errors import NNAdapterError
from nnadapter.onnx.preparation.caches import agreeing
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from nnadapter.planning.bounds import Bounds, nearby
from nnadapter.planning.looking_through import is_full
from nnadapter.planning.opening import Opened, unread_inputs
from nnadapter.process.cache import Cache
from nnadapter.process.forking import new_lock
from nnadapter.running.compiled import Compiled

if TYPE_CHECKING:
    from nnadapter.running.repeating import Serves

_MOST_LOOKED_AT = 256


class FixedSizesError(NNAdapterError):
    """There is no plan that leaves sizes open. Nobody outside of this room sees it."""

    def __init__(self, detail: str, *, is_for_all: bool = True) -> None:
        """Take why, and whether that holds for whatever sizes come."""
        super().__init__(detail)
        self.is_for_all = is_for_all


@dataclass(eq=False)
class _Looked:
    """Where a plan is known to hold that is looked through."""

    prepared: Prepared
    nodes: Sequence[int]
    bounds: Bounds


class OpenPlan:
    """One plan that leaves sizes open, by the key that it is kept under.

    Args:
        key: it is kept under it.
        at: the shapes at which it is made.
        is_weighed: costs at those shapes say what runs where, so that it is for shapes like them.
    """

    def __init__(self, key: tuple[str, int], at: Shapes, *, is_weighed: bool = False) -> None:
        self.key, self.at = key, at
        self._near = nearby(at) if is_weighed else None
        self.opening: Opened | None = None
        self._looked: _Looked | None = None
        self.widened = 0
        """How often its bounds were widened."""
        self._widening = new_lock()
        self._checked: Cache[object, bool] = Cache("shapes whose indices were checked", _MOST_LOOKED_AT)
        self._beyond: Cache[object, bool] = Cache("shapes beyond bounds", _MOST_LOOKED_AT)

    def made(self, compiled: Compiled) -> None:
        """Take what was made; after it was dropped, it is made again at the same shapes."""
        self.opening = compiled.opening
        assert self.opening is not None, "the plan leaves sizes open"
        if self.opening.is_looked_through and self._looked is None:
            model = compiled.partitioning.model
            bounds = Bounds(self.at, self.at, unread_inputs(model.prepared))
            self._looked = _Looked(model.prepared, model.specialized.positions, bounds)

    def sizes(self, opening: Opened | None, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Whether it holds at these shapes, and what its programs are told, if they leave sizes open as `opening` says.

        Programs that are made again number what follows from sizes anew, so theirs is told from their own opening.
        """
        assert opening is not None, "the plan was made"
        sizes = None if opening.sizes is None else opening.sizes.sizes(shapes)
        of_class = opening.sizes is None or sizes is not None
        holds = of_class and self._is_near(shapes) and (self._looked is None or self._is_within(self._looked, shapes))
        holds = holds and (not opening.unchecked or self._indices_hold(opening, shapes))
        return holds, sizes

    def serves(self, opening: Opened, declares: Callable[[Shapes], bool]) -> Serves | None:
        """What says whether it is known to hold at shapes, without a look at the model; None where nothing does.

        Args:
            opening: of its programs.
            declares: says whether the model takes shapes at all.
        """
        size_class, looked = opening.sizes, self._looked
        if looked is None and (size_class is None or self._near is None):
            return None if size_class is None else size_class.at

        def at(shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
            if not declares(shapes) or not self._is_near(shapes):
                return False, None
            sizes = None if size_class is None else size_class.sizes(shapes)
            is_within = looked is None or looked.bounds.hold(shapes)
            is_checked = not opening.unchecked or self._indices_hold(opening, shapes)
            return (size_class is None or sizes is not None) and is_within and is_checked, sizes

        return at

    def _indices_hold(self, opening: Opened, shapes: Shapes) -> bool:
        return self._checked.made(tuple(shapes.values()), lambda: opening.indices_hold(shapes))

    def _is_near(self, shapes: Shapes) -> bool:
        return self._near is None or self._near.hold(shapes)

    @property
    def bounds(self) -> Bounds | None:
        """Where it is known to hold; None where that is not looked through."""
        return None if self._looked is None else self._looked.bounds

    def broken(self, shapes: Shapes) -> str:
        """Why it does not hold at these shapes."""
        if not self._is_near(shapes):
            return "sizes are far from those at which costs were weighed"
        sizes = None if self.opening is None else self.opening.sizes
        return (sizes.broken(shapes) if sizes is not None else "") or "other nodes are left to run"

    def _is_within(self, looked: _Looked, shapes: Shapes) -> bool:
        if looked.bounds.hold(shapes):
            return True
        holds = self._is_full(looked, shapes)
        if holds:
            self._widen(looked, shapes)
        return holds

    def _is_full(self, looked: _Looked, shapes: Shapes) -> bool:
        return self._beyond.made(tuple(shapes.values()), lambda: is_full(looked.prepared, looked.nodes, shapes))

    def _widen(self, looked: _Looked, shapes: Shapes) -> None:
        """Widen the bounds, if the plan holds at their new least and largest sizes too, with which nobody came.

        The least of all, cached and new, is not the least of each: a mask of 1 stands beside a cache of 0.
        """
        with self._widening:
            wider = looked.bounds.widened(shapes)
            known = (shapes, *looked.bounds.ends)
            ends = [end for end in wider.ends if end not in known]
            if all(self._is_full(looked, agreeing(looked.prepared, end)) for end in ends):
                looked.bounds = wider
                self.widened += 1
