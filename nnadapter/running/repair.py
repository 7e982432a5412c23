"""What is taken from a device that failed to compile a segment: the nodes at fault, where they are found.

They are banned: the device is not given nodes of the same form any more, in this session and, where it has a cache,
in others until the ban expires. A segment that is too large for its device is cut in two. Where neither is found within
the bounds of a search, the device loses the whole segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnadapter.drivers.border import ask_admission, blamed_nodes, checked_program
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Admission, SegmentModel
from nnadapter.errors import FAILURES, DeviceLostError, OutOfMemoryError, describe
from nnadapter.planning.barring import barred, model_of
from nnadapter.planning.judgment import Atoms, Judgment, banning
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.closing import close_all
from nnadapter.running.bisecting import NOT_FOUND, Budget, Culprits, culprits_of
from nnadapter.running.built import atoms_of
from partition.plan import Plan, Step
from partition.verdict import Reason, Unsupported


class Repair:
    """Finds what a device cannot compile, within the bounds of one session.

    Args:
        setting: the devices.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting, self._budget = setting, Budget()

    def without(
        self,
        judgment: Judgment,
        partitioning: Partitioning,
        step: Step,
        error: BaseException,
        known: dict[Atoms, AdmittedSegment],
    ) -> Judgment:
        """Return the judgment without what a device failed to compile.

        Args:
            judgment: as it is now.
            partitioning: with the step.
            step: that failed.
            error: what the driver raised.
            known: answers of devices to segments; a segment that is too large is refused there, to be cut in two.
        """
        key, why = atoms_of(partitioning.plan, step), describe(error)
        device, atoms = self._setting.by_name[step.device], key[1]
        if isinstance(error, DeviceLostError) and not device.is_isolated:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, why)})
        found = self._found(partitioning, device, atoms, error)
        is_cut = found.is_too_large and len(atoms) > 1
        if is_cut:
            text = f"as a whole it failed to compile, and its parts do not: {why}"
            model = model_of(partitioning.model, device, atoms)
            if not isinstance(error, OutOfMemoryError):
                _ban(device, model, _names(partitioning, atoms), text, is_size=True)
            known[key] = AdmittedSegment(known[key].part, Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, text)))
        refused = dict.fromkeys(found.alone, f"it failed to compile it: {why}")
        for one, other in found.beside:
            (name,) = _names(partitioning, (one,))[:1]
            refused[other] = f"it failed to compile it together with {name!r}: {why}"
        if not refused and not is_cut:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, why)})
        for atom, text in refused.items():
            _ban(device, model_of(partitioning.model, device, (atom,)), _names(partitioning, (atom,)), text)
        bans: dict[Atoms, Unsupported] = {
            (device.name, (atom,)): Unsupported(Reason.COMPILE_FAILED, text) for atom, text in refused.items()
        }
        return barred(banning(judgment, self._setting, bans) if bans else judgment, self._setting)

    def _found(
        self, partitioning: Partitioning, device: SessionDevice, atoms: Sequence[int], error: BaseException
    ) -> Culprits:
        if isinstance(error, OutOfMemoryError):
            self._budget.tries -= 1
            return Culprits(is_too_large=self._budget.left())
        compiles = self._compiles(partitioning, device)
        if self._budget.left() and self._budget.spend(lambda: compiles(atoms)):
            return NOT_FOUND  # not what it holds is at fault: it could not be bound to another's program, say
        return culprits_of(atoms, compiles, self._budget)

    def _compiles(self, partitioning: Partitioning, device: SessionDevice) -> Callable[[Sequence[int]], bool]:
        def compiles(atoms: Sequence[int]) -> bool:
            """Whether the device compiles these atoms; what it does not admit it is not at fault for."""
            model, names = model_of(partitioning.model, device, atoms), _names(partitioning, atoms)
            admission = named_call(device.name, "admit", None, names)(ask_admission, device.context, model)
            if isinstance(admission.verdict, Unsupported):
                return True
            try:
                program = named_call(device.name, "compile", None, names)(device.context.compile, model)
                close_all([checked_program(program)])
            except FAILURES:  # a driver may raise anything; this is its border
                return False
            return True

        return compiles


def _ban(device: SessionDevice, model: SegmentModel, nodes: Sequence[str], why: str, *, is_size: bool = False) -> None:
    if device.bans is not None:
        device.bans.add(model, nodes, why, "compile", is_size=is_size)


def _names(partitioning: Partitioning, atoms: Sequence[int]) -> list[str]:
    graph = partitioning.plan.graph
    return [graph.nodes[node].name for atom in atoms for node in graph.atoms[atom]]


def blamed(partitioning: Partitioning, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """The nodes (positions in `step`) that a device is to blame for not loading; what is no valid ONNX is not."""
    refused = blamed_nodes(error, len(step.nodes))
    return {position: why for position, why in refused.items() if not _is_invalid(partitioning, step.nodes[position])}


def _is_invalid(partitioning: Partitioning, node: int) -> bool:
    verdict = partitioning.model.conversion.verdicts[node]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE


def delegated(setting: Setting, plan: Plan, left: Step) -> dict[Atoms, Unsupported]:
    """Every segment on a device that accelerates, refused for what cutting it out left behind.

    ONNX Runtime loads whole models that contradict themselves, and not always the parts, of which more is known.
    """
    detail = f"ONNX Runtime does not load segment {left.segment}, which is left then"
    why = Unsupported(Reason.COMPILE_FAILED, detail)
    return {atoms_of(plan, step): why for step in plan.steps if step.device in setting.accelerators}


def host_of(setting: Setting, plan: Plan, step: Step) -> SessionDevice:
    """The host, if it takes every node of a step as far as is known, else the last resort.

    A pin to the device that failed says nothing of the host, which is asked; a ban from the host holds.
    """
    host = setting.host
    has_bans = any(ban.device == host.name for ban in setting.constraints.rules.bans)

    def takes(node: int) -> bool:
        verdict = plan.verdicts[host.name][plan.graph.atom_of[node]]
        is_pinned = isinstance(verdict, Unsupported) and verdict.reason is Reason.RULE and not has_bans
        return bool(verdict) or is_pinned

    return host if all(map(takes, step.nodes)) else setting.last_resort
