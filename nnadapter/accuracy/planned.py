"""Checks of a session that plans: which nodes a step has, what is known of it, and how they are taken from a device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, proxy

from nnadapter.accuracy.bands import BANDS, precision_of
from nnadapter.accuracy.locating import ErrorCause, ErrorLocation, locate
from nnadapter.accuracy.saving import save_stretch
from nnadapter.accuracy.tolerances import Allowed, ByPrecision, quantized_values
from nnadapter.drivers.copies import on_host
from nnadapter.drivers.interface import SegmentModel
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.planning.barring import model_of
from nnadapter.planning.planner import ALL
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import Partitioning
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.compiled import Compiled, RunnablePlan
from nnadapter.running.deviation import Deviation
from nnadapter.running.incidents import Incidents
from nnadapter.running.planned import PlannedEngine
from partition.verdict import Reason, Unsupported

if TYPE_CHECKING:
    import onnx

REPRODUCERS = "reproducers"
"""In the folder of a cache."""
_DIGITS = 16


class PlannedSubject:
    """The plans of an engine that plans. See `Subject`."""

    def __init__(self, engine: PlannedEngine) -> None:
        self._engine: PlannedEngine = proxy(engine)  # which has this
        self._setting = engine.setting
        self._quantized: WeakKeyDictionary[Partitioning, frozenset[str]] = WeakKeyDictionary()

    @property
    def incidents(self) -> Incidents:
        """See `Subject.incidents`."""
        return self._engine.incidents

    def nodes(self, plan: RunnablePlan, bound: BoundStep) -> Sequence[str]:
        """See `Subject.nodes`."""
        graph = _partitioning(plan).plan.graph
        return [graph.nodes[node].name for node in bound.step.nodes]

    def allowed(self, plan: RunnablePlan, bound: BoundStep) -> Allowed:
        """See `Subject.allowed`."""
        partitioning = _partitioning(plan)
        graph = partitioning.plan.graph
        if partitioning not in self._quantized:
            self._quantized[partitioning] = quantized_values(graph)
        dtypes = {name: graph.value(name).dtype or "" for name in bound.step.outputs}
        precision = precision_of(self._setting.by_name[bound.step.device].options)
        return ByPrecision(precision=precision, dtypes=dtypes, quantized=self._quantized[partitioning])

    def locate(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> ErrorLocation:
        """See `Subject.locate`."""
        partitioning, device = _partitioning(plan), bound.step.device
        part, names = partitioning.model.parts.part(bound.step), self.nodes(plan, bound)
        model: onnx.ModelProto = part.model
        for proto, name in zip(model.graph.node, names, strict=True):
            proto.name = name
        inputs = {name: on_host(values[plan.plan.slots[name]]) for name in part.inputs}
        precision = precision_of(self._setting.by_name[device].options)
        located = locate(self._setting, model, device, inputs, precision)
        return replace(located, nodes=tuple(_outer(located.nodes, names)))

    def known(self, plan: RunnablePlan, bound: BoundStep) -> ErrorLocation | None:
        """See `Subject.known`."""
        cache, model = self._setting.by_name[bound.step.device].cache, _model(plan, bound)
        record = None if cache is None or model is None else cache.checked(model)
        with suppress(ValueError, TypeError, KeyError, IndexError):  # else it is checked again
            return None if record is None else _read(json.loads(record), self.nodes(plan, bound))
        return None

    def keep(self, plan: RunnablePlan, bound: BoundStep, located: ErrorLocation) -> ErrorLocation:
        """See `Subject.keep`: in the session's cache, if there is one."""
        device, model = self._setting.by_name[bound.step.device], _model(plan, bound)
        if device.cache is None or model is None:
            return located
        shown = replace(located, reproducer=_reproduced(device, device.cache.path, located))
        if located.blame is ErrorCause.NODES and _banned(device, _partitioning(plan), bound, shown):
            return shown  # the next session has another segment
        device.cache.keep_checked(model, json.dumps(_written(shown, self.nodes(plan, bound))).encode())
        return shown

    def take_back(self, plan: RunnablePlan, bound: BoundStep, nodes: Sequence[str], reason: str) -> None:
        """See `Subject.take_back`."""
        refused = Unsupported(Reason.WRONG_RESULT, reason)
        self._engine.take_back(bound.step.device, dict.fromkeys(nodes or [ALL], refused))


def _partitioning(plan: RunnablePlan) -> Partitioning:
    """The one that the steps of a plan are of."""
    assert isinstance(plan, Compiled), "the engine plans"
    return plan.partitioning if plan.opening is None else plan.opening.partitioning


def _model(plan: RunnablePlan, bound: BoundStep) -> SegmentModel | None:
    """What a step's device compiled; None where that is another one at every size."""
    piece = _partitioning(plan).pieces[bound.position]
    return None if piece is None else piece.part.model


def _banned(device: SessionDevice, partitioning: Partitioning, bound: BoundStep, located: ErrorLocation) -> bool:
    """Ban nodes for the driver's version; whether all of them could be."""
    graph, off = partitioning.plan.graph, located.deviation
    if device.bans is None or off is None:
        return False
    reason = f"its results are wrong: {off.value!r} is off by {off.largest_absolute:.3g}"
    wrong = {graph.atom_of[node] for node in bound.step.nodes if graph.nodes[node].name in located.nodes}
    bans = []
    for atom in sorted(wrong):
        names = [graph.nodes[node].name for node in graph.atoms[atom]]
        model = model_of(partitioning.model, device, (atom,))
        bans.append(device.bans.add(model, names, reason, "accuracy", reproducer=located.reproducer))
    return all(ban is not None for ban in bans)


def _outer(names: Sequence[str], every: Sequence[str]) -> Sequence[str]:
    """The nodes of a plan that these are, or whose bodies have them."""
    plan_names = set(every)
    outer = (
        next((enclosing_name for enclosing_name in _enclosing(name) if enclosing_name in plan_names), "")
        for name in names
    )
    return list(dict.fromkeys(filter(None, outer)))


def _enclosing(name: str) -> Sequence[str]:
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _written(located: ErrorLocation, nodes: Sequence[str]) -> Mapping[str, Any]:
    """What was found, by positions of nodes in the segment: another model may call them otherwise."""
    return {
        "blame": located.blame.value,
        "nodes": [position for position, name in enumerate(nodes) if name in located.nodes],
        "reproducer": located.reproducer,
        "off": None if located.deviation is None else asdict(located.deviation),
    }


def _read(record: Mapping[str, Any], nodes: Sequence[str]) -> ErrorLocation:
    names = tuple(nodes[int(position)] for position in record["nodes"])
    off = None if record["off"] is None else Deviation(**record["off"])
    return ErrorLocation(ErrorCause(record["blame"]), names, off, reproducer=str(record["reproducer"]))


def _reproduced(device: SessionDevice, folder: Path, located: ErrorLocation) -> str:
    """Write a small model of what is wrong first, and return its folder; empty where nothing is, or it fails."""
    if not located.stretches:
        return ""
    stretch = located.stretches[0]
    digest = sha256(stretch.excerpt.model.SerializeToString(deterministic=True)).hexdigest()[:_DIGITS]
    band = BANDS[precision_of(device.options)]
    with suppress(OSError, ValueError):  # a sequence of different shapes is no array
        path = folder / REPRODUCERS / f"{device.name.replace(':', '_')}-{digest}"
        return save_stretch(path, stretch, [_request(device)], band.relative, band.absolute).folder
    return ""


def _request(device: SessionDevice) -> DeviceRequest:
    usual = {option.name: option.default for option in device.capability.options}
    return device.name, {name: value for name, value in device.options.items() if value != usual.get(name)}
