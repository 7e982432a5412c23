"""What bans of a device come to for one model: atoms of a banned form are not given to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nnadapter.drivers.interface import SegmentModel
from nnadapter.offering.model import ShapedModel
from nnadapter.offering.segments import part_of
from nnadapter.planning.judgment import Atoms, Judgment, banning
from nnadapter.planning.session_bans import SessionBans
from nnadapter.planning.setting import SessionDevice, Setting
from partition.graph import Graph
from partition.plan import Step
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    from nnadapter.caching.bans import Ban


def barred(judgment: Judgment, setting: Setting) -> Judgment:
    """The same with what bans forbid taken back; most sessions have none, and nothing is looked at."""
    bans: dict[Atoms, Unsupported] = {
        (device.name, (atom,)): Unsupported(Reason.BANNED, ban.text)
        for device in setting.devices
        if device.bans is not None and device.bans.of_nodes
        for atom, ban in _banned(judgment, device, device.bans)
    }
    return banning(judgment, setting, bans) if bans else judgment


def _banned(judgment: Judgment, device: SessionDevice, bans: SessionBans) -> Iterator[tuple[int, Ban]]:
    verdicts = judgment.support.verdicts[device.name]
    for atom in range(len(judgment.model.graph.atoms)):
        ban = bans.find(model_of(judgment.model, device, (atom,))) if verdicts[atom] else None
        if ban is not None and not ban.is_size:
            yield atom, ban


def model_of(model: ShapedModel, device: SessionDevice, atoms: Sequence[int]) -> SegmentModel:
    """Return some atoms as the model that a device takes."""
    step = step_of(model.graph, device.name, atoms)
    return part_of(device.capability, device.kernels, step, model.conversion, model.parts).model


def step_of(graph: Graph, device: str, atoms: Sequence[int]) -> Step:
    """Return the step that some atoms would be, whatever else there is: what others read of them is its output."""
    nodes = tuple(sorted(node for atom in atoms for node in graph.atoms[atom]))
    own, kept = frozenset(nodes), frozenset(graph.outputs)
    made = [name for node in nodes for name in graph.nodes[node].outputs if name]
    inside = frozenset(made)
    read = dict.fromkeys(name for node in nodes for name in graph.nodes[node].reads if name not in inside)
    outside = [name for name in made if name in kept or not own.issuperset(graph.consumers.get(name, ()))]
    return Step(
        segment=0,
        device=device,
        nodes=nodes,
        inputs=tuple(name for name in read if name not in graph.constants),
        constants=tuple(name for name in read if name in graph.constants),
        outputs=tuple(outside or made),
        released=(),
    )
