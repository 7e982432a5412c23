"""Memory of intermediate values: one block per run, which values with disjoint lifetimes share.

Fresh memory for a large result often costs more than computing it. A step reuses a region only if it depends on all
earlier users, so independent steps may overlap. If a driver returns a view of the block, it is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from math import prod
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.arenas import ALIGNMENT, Arenas
from nnadapter.drivers.boundary import OutputCheck
from nnadapter.engine.bound_steps import expected_outputs
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass, field
from partition.plan import Plan

LEAST_BYTES = 1 << 16

Into = tuple[Array, ...]
"""Arrays that a step writes its outputs to; empty if it allocates them."""


class Place(NamedTuple):
    """Shape, dtype and offset of one output of a step."""

    dimensions: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    """Offset in the run's memory block; None for new memory, since the caller receives the output."""

    def within(self, block: Array) -> Array | None:
        if self.offset is None:
            return None
        nbytes = prod(self.dimensions) * self.dtype.itemsize
        return block[self.offset : self.offset + nbytes].view(self.dtype).reshape(self.dimensions)


class RunBuffers(NamedTuple):
    """Memory block of one run, with arrays for the outputs of each step."""

    block: Array
    rows: Sequence[Sequence[tuple[Place, Array | None]]]

    def of(self, position: int) -> Into:
        row = self.rows[position]
        return tuple(np.empty(place.dimensions, place.dtype) if array is None else array for place, array in row)

    def copy_if_aliased(self, results: Sequence[Any], into: Into = ()) -> Sequence[Any]:
        """Return results; views of the memory block are copied, except the arrays of `into`."""
        if results is into:
            return results
        buffer_ids = set(map(id, into))
        return [result if id(result) in buffer_ids else _copied_if_shared(result, self.block) for result in results]


@dataclass(frozen=True, eq=False)
class IntermediateBuffers:
    """Memory layout of the intermediate values of one plan."""

    rows: Sequence[Sequence[Place]]
    nbytes: int
    arenas: Arenas = field(repr=False)

    @contextmanager
    def acquire(self) -> Iterator[RunBuffers]:
        with self.arenas.acquire(self.nbytes, self) as arena:
            buffers: RunBuffers | None = arena.bound.get(self)
            if buffers is None:
                rows = [[(place, place.within(arena.bytes)) for place in row] for row in self.rows]
                buffers = arena.bound[self] = RunBuffers(arena.bytes, rows)
            yield buffers


def plan_intermediate_buffers(
    plan: Plan, reads: Mapping[int, Sequence[str]], arenas: Arenas, staying: Collection[int] = ()
) -> IntermediateBuffers | None:
    """Return the memory layout of intermediate values; None if none is large and of static size.

    `reads` are the inputs of each segment's program, `staying` the segments with device-resident outputs.
    """
    released = {name for step in plan.steps for name in step.released}
    step_places = [_places(expected_outputs(plan.graph, step.outputs)) for step in plan.steps]
    sizes = {
        name: prod(place.dimensions) * place.dtype.itemsize
        for step, places in zip(plan.steps, step_places, strict=True)
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
        for step, places in zip(plan.steps, step_places, strict=True)
    ]
    return IntermediateBuffers(rows, starts[-1], arenas)


def share_regions(
    steps: Sequence[tuple[Collection[str], Sequence[str]]], sizes: Mapping[str, int]
) -> tuple[dict[str, int], list[int]]:
    """Return the memory region of every value in `sizes` (in bytes), and the bytes of every region.

    A value gets the smallest free region that is large enough; otherwise the largest free region grows.
    """
    made_by = {name: position for position, (_, outputs) in enumerate(steps) for name in outputs}
    readers = Counter[str]()  # a set of steps is an integer with one bit per step
    for position, (inputs, _) in enumerate(steps):
        readers.update(dict.fromkeys(inputs, 1 << position))
    dependencies: list[int] = []  # per step, all steps that it depends on
    region_of: dict[str, int] = {}
    regions: list[int] = []
    users: list[int] = []  # per region, the steps that write or read its value
    for position, (inputs, outputs) in enumerate(steps):
        sources = {made_by[name] for name in inputs if name in made_by}
        dependencies.append(reduce(or_, (dependencies[source] | 1 << source for source in sources), 0))
        for name in outputs:
            if name not in sizes:
                continue
            free = [region for region, user_bits in enumerate(users) if not user_bits & ~dependencies[position]]
            region = _best(free, regions, sizes[name])
            if region == len(regions):
                regions.append(0)
                users.append(0)
            regions[region] = max(regions[region], -(-sizes[name] // ALIGNMENT) * ALIGNMENT)
            users[region] = 1 << position | readers[name]
            region_of[name] = region
    return region_of, regions


def _best(free: Sequence[int], regions: Sequence[int], nbytes: int) -> int:
    return min(free, key=lambda region: (regions[region] < nbytes, abs(regions[region] - nbytes)), default=len(regions))


def held_between(arenas: Arenas) -> Mapping[Hashable, int]:
    """Return the bytes of intermediate memory that a session's plans share, by the memory's identity."""
    return {("between steps", id(arenas)): arenas.used_bytes}


def _places(check: OutputCheck) -> list[Place]:
    """Return places without offsets; empty if an output has an unknown or zero size or holds objects."""
    places = []
    for spec in check:
        sizes = () if spec is None else tuple(size for size in spec[0] if size)
        if spec is None or spec[1].hasobject or len(sizes) < len(spec[0]):
            return []
        places.append(Place(sizes, spec[1], None))
    return places


def _copied_if_shared(result: Any, block: Array) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_copied_if_shared(element, block) for element in result)
    shared = isinstance(result, np.ndarray) and result.base is not None and np.may_share_memory(result, block)
    return result.copy() if shared else result
