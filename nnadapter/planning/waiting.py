"""Atoms that wait for values of which they need the sizes.

Where sizes are known, a node runs as soon as what it reads is there, perhaps before a value of which it needs nothing
but the size. Where sizes are open, it has to run behind that: in a later segment of its device, with all that reads it.
Where the device has none, as it makes the value in the very segment that reads what waits, it gets one at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from nnadapter.offering.open_parts import DynamicParts
from partition.plan import Plan, Step, make_plan
from partition.segments import Segment


def with_sizes_in_order(plan: Plan, parts: DynamicParts, takes_ir: Set[str]) -> Plan:
    """Return the plan with every atom behind the values that it needs the sizes of.

    It is the same where all are. Segments in adapter IR are given sizes, or compute them.

    Args:
        plan: a plan at some shapes.
        parts: takes parts of open sizes out of the model.
        takes_ir: names of devices that take adapter IR.
    """
    homes = _homes(plan)
    if not any(_early(step, parts, homes) for step in plan.steps if step.device not in takes_ir):
        return plan
    held: dict[int, list[int]] = defaultdict(list)
    for atom, place in enumerate(_places(plan, parts, takes_ir, homes)):
        held[place].append(atom)
    segments = [Segment(plan.placement[held[place][0]], tuple(held[place])) for place in sorted(held)]
    return make_plan(plan.graph, plan.devices, plan.verdicts, plan.placement, segments, exact=plan.exact)


def _homes(plan: Plan) -> dict[str, int]:
    """The position of the step that makes each value."""
    nodes = plan.graph.nodes
    return {
        name: number for number, step in enumerate(plan.steps) for node in step.nodes for name in nodes[node].outputs
    }


def _early(step: Step, parts: DynamicParts, homes: dict[str, int]) -> bool:
    """Whether a step reads what a later one makes."""
    return any(homes.get(name, -1) > step.segment for name in parts.reads(step))


def _places(plan: Plan, parts: DynamicParts, takes_ir: Set[str], homes: dict[str, int]) -> Sequence[int]:
    """The step of every atom; behind those of the plan, where a device has none of these that is late enough."""
    graph, devices = plan.graph, [step.device for step in plan.steps]
    places = [0] * len(graph.atoms)
    for number, step in enumerate(plan.steps):
        for node in step.nodes:
            places[graph.atom_of[node]] = number
    read = [_read(plan, atom, places[atom], parts, takes_ir) for atom in range(len(graph.atoms))]
    makers = {name: graph.atom_of[node] for name, node in graph.producer.items() if name in homes}
    changed = True
    while changed:
        changed = False
        for atom, names in enumerate(read):
            least = max((places[makers[name]] for name in names if name in makers), default=0)
            if least <= places[atom]:
                continue
            device = plan.placement[atom]
            if device not in devices[least:]:
                devices.append(device)
            places[atom], changed = devices.index(device, least), True
    return places


def _read(plan: Plan, atom: int, place: int, parts: DynamicParts, takes_ir: Set[str]) -> tuple[str, ...]:
    """What an atom reads, of which it may need the size alone."""
    nodes, step = plan.graph.atoms[atom], plan.steps[place]
    own = tuple(name for node in nodes for name in plan.graph.nodes[node].reads)
    if step.device in takes_ir:
        return own
    made = tuple(name for node in nodes for name in plan.graph.nodes[node].outputs if name)
    alone = Step(
        segment=place,
        device=step.device,
        nodes=tuple(sorted(nodes)),
        inputs=(),
        constants=(),
        outputs=made,
        released=(),
    )
    return (*own, *parts.reads(alone))
