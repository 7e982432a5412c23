"""Memory for values that pass between the steps of a plan: planned by when they are needed, and used again by each run.

Fresh memory for a large result costs more than many a segment computes: the system hands it out page by page, zeroed,
and in no cache. So values of known size lie in regions of one block, which is lent to one run at a time. A region holds
one value after another: the next is put there by a step that can only begin when the step that made the last one, and
all that read it, are done. That is told by what steps read from each other and not by their order in the plan, so that
independent steps may run in any order, or at once.

Not planned are the outputs of the model, which belong to the caller; small values, which memory of the process serves
as well; what stays in memory of its device; and what has no size before it is made: that comes from the driver, new. A
driver may give a view of its input instead of a value of its own: one that lies in the block is copied, since the block
is used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from math import prod
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.arenas import ALIGNMENT, Arenas
from nnadapter.drivers.boundary import OutputCheck
from nnadapter.ir.operand import Array
from nnadapter.running.bound_step import expected_outputs
from partition.plan import Plan

LEAST_BYTES = 1 << 16
"""From this size on memory is planned for a value."""

Into = tuple[Array, ...]
"""Where a step writes its outputs; empty where it makes them itself."""


class Place(NamedTuple):
    """What an output is, and where it lies."""

    dimensions: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    """In the block; None for new memory, since the caller gets it."""

    def within(self, block: Array) -> Array | None:
        """The array in a block, None for new memory."""
        if self.offset is None:
            return None
        nbytes = prod(self.dimensions) * self.dtype.itemsize
        return block[self.offset : self.offset + nbytes].view(self.dtype).reshape(self.dimensions)


class RunBuffers(NamedTuple):
    """The block that one run has, and what lies where in it."""

    block: Array
    rows: Sequence[Sequence[tuple[Place, Array | None]]]
    """Per step its outputs, with their arrays in the block."""

    def of(self, position: int) -> Into:
        """Where the step at a position writes."""
        row = self.rows[position]
        return tuple(np.empty(place.dimensions, place.dtype) if array is None else array for place, array in row)

    def copy_if_aliased(self, results: Sequence[Any], into: Into = ()) -> Sequence[Any]:
        """What a step gave that was to write `into`, copied where it lies in the block without having been told to."""
        if results is into:
            return results
        told = set(map(id, into))
        return [result if id(result) in told else _apart(result, self.block) for result in results]


@dataclass(frozen=True, eq=False)
class IntermediateBuffers:
    """Where the values of one plan lie."""

    rows: Sequence[Sequence[Place]]
    """Per step its outputs; empty where it makes them itself."""
    nbytes: int
    """Of the block."""
    arenas: Arenas = field(repr=False)
    """Where blocks come from: those of one session, whatever the plan."""

    @contextmanager
    def acquire(self) -> Iterator[RunBuffers]:
        """A block, for one run."""
        with self.arenas.acquire(self.nbytes, self) as arena:
            given: RunBuffers | None = arena.bound.get(self)
            if given is None:
                rows = [[(place, place.within(arena.bytes)) for place in row] for row in self.rows]
                given = arena.bound[self] = RunBuffers(arena.bytes, rows)
            yield given


def plan_intermediate_buffers(
    plan: Plan, reads: Mapping[int, Sequence[str]], arenas: Arenas, staying: Collection[int] = ()
) -> IntermediateBuffers | None:
    """Plan the memory of a plan's values; None where there is nothing to plan.

    Args:
        plan: whose steps run.
        reads: per segment, what its program reads.
        arenas: where blocks come from.
        staying: segments that make what they make in memory of their device.
    """
    released = {name for step in plan.steps for name in step.released}
    known = [_places(expected_outputs(plan.graph, step.outputs)) for step in plan.steps]
    sizes = {
        name: prod(place.dimensions) * place.dtype.itemsize
        for step, places in zip(plan.steps, known, strict=True)
        if step.segment not in staying
        for name, place in zip(step.outputs, places, strict=bool(places))
        if name in released and name not in plan.graph.outputs
    }
    large = {name: nbytes for name, nbytes in sizes.items() if nbytes >= LEAST_BYTES}
    if not large:
        return None
    region_of, regions = share_regions(
        [({*step.inputs, *reads[step.segment]}, step.outputs) for step in plan.steps], large
    )
    starts = (0, *accumulate(regions))
    rows = [
        [
            place._replace(offset=starts[region_of[name]]) if name in region_of else place
            for name, place in zip(step.outputs, places, strict=True)
        ]
        if places and not region_of.keys().isdisjoint(step.outputs)
        else []
        for step, places in zip(plan.steps, known, strict=True)
    ]
    return IntermediateBuffers(rows, starts[-1], arenas)


def share_regions(
    steps: Sequence[tuple[Collection[str], Sequence[str]]], sizes: Mapping[str, int]
) -> tuple[dict[str, int], list[int]]:
    """Share regions of memory out among values.

    A value gets the smallest region that is free for it and large enough; else the largest that is free, which grows;
    else a new one.

    Args:
        steps: for each, in an order in which they can run, the values that it reads, and those that it makes.
        sizes: bytes of the values that are shared out.

    Returns:
        The region of every value, and the bytes of every region.
    """
    made_by = {name: position for position, (_, outputs) in enumerate(steps) for name in outputs}
    readers = Counter[str]()  # sets of steps are numbers with a bit for each
    for position, (inputs, _) in enumerate(steps):
        readers.update(dict.fromkeys(inputs, 1 << position))
    before: list[int] = []  # per step, those that are done when it begins
    region_of: dict[str, int] = {}
    regions: list[int] = []
    users: list[int] = []  # per region, the steps that make or read what lies there
    for position, (inputs, outputs) in enumerate(steps):
        sources = {made_by[name] for name in inputs if name in made_by}
        before.append(reduce(or_, (before[source] | 1 << source for source in sources), 0))
        for name in outputs:
            if name not in sizes:
                continue
            free = [region for region, used in enumerate(users) if not used & ~before[position]]
            region = _best(free, regions, sizes[name])
            if region == len(regions):
                regions.append(0)
                users.append(0)
            regions[region] = max(regions[region], -(-sizes[name] // ALIGNMENT) * ALIGNMENT)
            users[region] = 1 << position | readers[name]
            region_of[name] = region
    return region_of, regions


def _best(free: Sequence[int], regions: Sequence[int], nbytes: int) -> int:
    """The region that fits best; the next new one if none is free."""
    return min(free, key=lambda region: (regions[region] < nbytes, abs(regions[region] - nbytes)), default=len(regions))


def held_between(arenas: Arenas) -> Mapping[Hashable, int]:
    """What the plans of a session hold together for values between their steps, see `Holding.shared_bytes`."""
    return {("between steps", id(arenas)): arenas.used_bytes}


def _places(check: OutputCheck) -> list[Place]:
    """What the outputs of a step are; empty where that is not known of each, or where one is no piece of memory."""
    places = []
    for spec in check:
        sizes = () if spec is None else tuple(size for size in spec[0] if size)
        if spec is None or spec[1].hasobject or len(sizes) < len(spec[0]):
            return []
        places.append(Place(sizes, spec[1], None))
    return places


def _apart(result: Any, block: Array) -> Any:
    """A result that does not lie in the block; sequences hold arrays."""
    if isinstance(result, (list, tuple)):
        return type(result)(_apart(element, block) for element in result)
    shared = isinstance(result, np.ndarray) and result.base is not None and np.may_share_memory(result, block)
    return result.copy() if shared else result
