"""What was measured in earlier sessions.

It is kept by the model's contents, devices with versions and options, input shapes, rules, machine, threads and our own
version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnadapter.costs.calibration import driver_version
from nnadapter.costs.measured_choices import (
    MeasuredCandidate,
    MeasuredChoice,
    MeasuredDevice,
    choice_key,
    forget,
    recall,
    remember,
)
from nnadapter.errors import StoredFileError
from nnadapter.options import fallback_text
from nnadapter.planning.judgment import Judgment, placed_as
from nnadapter.planning.setting import Setting
from nnadapter.process.packages import own_version
from nnadapter.process.processors import machine_description
from nnadapter.running.compiled import TimedPlacement
from partition.plan import Plan

if TYPE_CHECKING:
    import onnxruntime

EARLIER = "measured in an earlier session"
"""How a remembered choice came about."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Recalled:
    """What was chosen earlier."""

    judgment: Judgment
    """Placed as it was then."""
    timed: tuple[TimedPlacement, ...]
    """The one taken first."""


class PastChoices:
    """What was measured in one setting, here and in earlier sessions.

    Args:
        setting: with its devices.
        session_options: of ONNX Runtime: how many threads it may use; None for as many as it takes.
    """

    def __init__(self, setting: Setting, session_options: onnxruntime.SessionOptions | None = None) -> None:
        self._setting, self._session_options = setting, session_options

    def recall(self, judgment: Judgment) -> tuple[Recalled | None, str]:
        """Return what was chosen for these verdicts and shapes, and a note: why a file that is there is not used."""
        known, note = recall(self.key(judgment))
        if known is None:
            return None, note
        graph, verdicts = judgment.model.graph, judgment.support.verdicts
        labels = [known.placement.get(graph.nodes[nodes[0]].name, "") for nodes in graph.atoms]
        fits = all(verdicts.get(label, {atom: None})[atom] for atom, label in enumerate(labels))
        if not fits:
            return None, "what is remembered of this model does not fit it any more, and counts as not measured"
        return Recalled(
            judgment=placed_as(judgment, labels),
            timed=tuple(
                TimedPlacement(origin=candidate.origin, predicted=None, measured=candidate.seconds)
                for candidate in known.timed
            ),
        ), note

    def keep(self, judgment: Judgment, plan: Plan, timed: Sequence[TimedPlacement]) -> str:
        """Keep the plan that was taken for the next time; return why that failed, empty where it did not."""
        graph = plan.graph
        placement = {node.name: plan.placement[atom] for node, atom in zip(graph.nodes, graph.atom_of, strict=True)}
        measured = tuple(
            MeasuredCandidate(origin=timed_placement.origin, seconds=timed_placement.measured)
            for timed_placement in timed
        )
        try:
            remember(self.key(judgment), MeasuredChoice(placement=placement, timed=measured))
        except StoredFileError as error:
            return str(error)
        return ""

    def forget(self, judgment: Judgment) -> None:
        """Keep nothing of these verdicts and shapes, as far as the file can be deleted."""
        forget(self.key(judgment))

    def key(self, judgment: Judgment) -> str:
        """Return what a choice is kept by."""
        devices = [
            MeasuredDevice(name=device.name, version=driver_version(device.name), options=device.options)
            for device in self._setting.devices
        ]
        constraints = self._setting.constraints
        named = [device.name for device in self._setting.devices if device.named]
        isolated = [device.name for device in self._setting.devices if device.is_isolated]
        fallback = fallback_text(constraints.fallback)
        said = f"{constraints.rules!r} {constraints.plan_file!r} {fallback} {named} isolated {isolated}"
        machine = f"{machine_description()}, threads {self._threads()}"
        return choice_key(judgment.model.prepared.digest, devices, judgment.model.shapes, own_version(), said, machine)

    def _threads(self) -> tuple[int, int]:
        given = self._session_options
        return (0, 0) if given is None else (given.intra_op_num_threads, given.inter_op_num_threads)
