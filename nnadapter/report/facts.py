"""Facts of a report as immutable values, and their JSON form. docs/reference/report-keys.md lists the keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from nnadapter.drivers.tensor_copies import HOST, Transfer
from nnadapter.engine.fallback import Incident, Incidents
from nnadapter.engine.plan_store import PlanCounts
from nnadapter.onnx.preparation.branch_decisions import BranchDecision, decisions_text
from nnadapter.planning.overlap import Boundaries
from nnadapter.planning.plan_files import UnmatchedEntry
from nnadapter.process.resources import CacheCounts, memoize
from nnadapter.records import dataclass, field


def plain(value: Any) -> Any:
    """Convert facts to JSON data; non-finite numbers become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    # drivers' facts may be numpy scalars and non-finite
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def to_lines(data: Mapping[str, Any]) -> str:
    """Return compact JSON text: one line per key, node or segment."""
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_value(value)}" for key, value in data.items()) + "\n}"


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(item, allow_nan=False)}" for item in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


@memoize(256)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


GUESSES = frozenset({"modeled", "assumed"})
NOTHING = 1e-9
"""Seconds below which differences are rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFacts:
    """Candidate placement with its cost."""

    name: str
    seconds: float | None
    measured_seconds: float | None = None
    eligible: bool = True
    """False if a plan file or rules exclude it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """Cost of the plan in seconds per run, with a lower bound."""

    seconds: float
    """Measured if the plan was chosen by timing, otherwise predicted."""
    bound_seconds: float | None = None
    """Lower bound on the seconds of all placements that `bound_of` names."""
    bound_of: str = "any placement"
    """Bounded placements: any, or any that obeys the plan file and rules."""
    bound_kind: str = ""
    gap: float | None = None
    """Relative distance to the lower bound: 0.05 is 5 % above it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> source of `seconds`: `measured`, `calibrated`, `simulated`, `modeled` or `assumed`."""
    predicted_seconds: float | None = None
    prediction_sources: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[CandidateFacts, ...] = ()
    all_cpu_seconds: float | None = None
    """Cost with everything on the CPU, measured if `seconds` is, otherwise predicted."""
    all_cpu_predicted_seconds: float | None = None
    note: str = ""

    @property
    def is_measured(self) -> bool:
        return set(self.sources.values()) == {"measured"}

    @property
    def word(self) -> str:
        """Kind of `seconds`: `measured`, `predicted`, or `guessed` if a device's costs are not measured."""
        return "measured" if self.is_measured else self.predicted_word

    @property
    def predicted_word(self) -> str:
        return predicted_word(self._predicting)

    @property
    def guesses(self) -> frozenset[str]:
        return frozenset(name for name, source in self._predicting.items() if source in GUESSES)

    @property
    def _predicting(self) -> Mapping[str, str]:
        return self.prediction_sources or ({} if self.is_measured else self.sources)

    @property
    def against_cpu(self) -> tuple[float, float, str] | None:
        """Seconds of this plan and with everything on the CPU, and their kind as in `word`; None if unknown."""
        if self.all_cpu_seconds is not None:
            return self.seconds, self.all_cpu_seconds, self.word
        if self.predicted_seconds is None or self.all_cpu_predicted_seconds is None:
            return None
        return self.predicted_seconds, self.all_cpu_predicted_seconds, self.predicted_word

    @property
    def cpu_is_better(self) -> bool:
        return self.against_cpu is not None and self.against_cpu[0] - self.against_cpu[1] >= NOTHING


def predicted_word(sources: Mapping[str, str]) -> str:
    """Return `predicted`, or `guessed` if a source is not a measurement."""
    return "guessed" if GUESSES.intersection(sources.values()) else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCost:
    """Estimated effect of a device's refusals of one op type for one reason."""

    device: str
    op_type: str
    reason: str
    switches: int
    """Device switches saved if the device took these nodes; may be negative."""
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """Rule of the user, and its effect."""

    text: str
    source: str = ""
    """Location of the rule: `pin 2 in rules.toml`."""
    nodes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFileFacts:
    """Plan file that placed nodes."""

    path: str
    matched_nodes: int
    unmatched_entries: tuple[UnmatchedEntry, ...] = ()
    """Unused entries: no node matches, or a refusal, rule or limit excluded the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Bytes of constants; a constant counts once per device, and once in `total`."""

    devices: Mapping[str, int] = field(default_factory=dict)
    total: int = 0


SCHEMA_VERSION = 2
"""Version of the JSON form. New keys do not raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalFacts:
    """Refusal of a node by a device."""

    device: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """Graph inside a node, such as a branch of If."""

    name: str
    op_types: Mapping[str, int]
    """Number of nodes by op type, nested graphs included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Node of the original model, and where it runs."""

    name: str
    op_type: str
    domain: str
    state: str
    device: str = ""
    segment: int | None = None
    runs_as: str = ""
    """Device's description of its operation; nodes with the same text are fused."""
    flops: int | None = None
    nbytes: int = 0
    """Bytes of inputs and outputs, weights included."""
    refusals: tuple[RefusalFacts, ...] = ()
    bodies: tuple[BodyFacts, ...] = ()
    predicted_seconds: float | None = None
    """Predicted time; a fused group's time is divided in proportion to its nodes' FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """Value that crosses a segment's boundary."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Result of the search for a segment's compiled program in the session's cache."""

    hit: bool
    miss_reason: str
    """Part of the key that differs from the nearest entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Segment of the plan."""

    index: int
    device: str
    nodes: tuple[str, ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    flops: int
    weight_bytes: int
    facts: Mapping[str, int | float | str | None]
    seconds: float | None = None
    unknown_flops_nodes: int = 0
    failures: tuple[str, ...] = ()
    predicted_seconds: float | None = None
    """Predicted duration, including transfers and launch."""
    transfer_seconds: float | None = None
    launch_seconds: float | None = None
    benefit_seconds: float | None = None
    """Predicted saving compared with the CPU."""
    compile_seconds: float | None = None
    program_of: int | None = None
    """Index of another segment whose compiled program this one runs, with its own constants."""
    cache: CacheFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDecisionFacts:
    """Condition of `If` nodes that depends on inputs, and its value in this plan."""

    condition: str
    value: bool
    nodes: tuple[str, ...]
    """`If` nodes that the chosen branch replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """Copies of a run between host and devices with memory of their own."""

    to_device: int
    bytes_to_device: int
    to_host: int
    bytes_to_host: int
    seconds: float
    round_trips: int
    """Tensors copied to the host and back to the same device."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of work on devices other than `cpu` and `reference`, from 0 to 1."""

    nodes: float
    flops: float
    """Share of known FLOPs, counting a multiply-add as two."""
    bytes: float
    """Share of bytes read and written by nodes, including weights."""


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """Facts about a plan, which `PartitionReport` renders."""

    devices: tuple[str, ...]
    policy: str
    input_shapes: Mapping[str, tuple[int, ...]]
    coverage: Coverage
    segments: tuple[SegmentFacts, ...]
    nodes: tuple[NodeFacts, ...]
    switches: int
    exact: bool
    """True if no plan with fewer segments exists for this placement."""
    notes: tuple[str, ...] = ()
    """Unexpected events, such as fallbacks."""
    plans: PlanCounts | None = None
    """Use of the session's plans; None if nothing was compiled."""
    caches: tuple[CacheCounts, ...] = ()
    weights: WeightFacts = field(default_factory=WeightFacts)
    cost: CostFacts | None = None
    cost_note: str = ""
    rules: tuple[RuleFacts, ...] = ()
    plan_file: PlanFileFacts | None = None
    model: str = ""
    """File name or graph name; empty if unknown."""
    fallback: str = ""
    device_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    isolated: tuple[str, ...] = ()
    """Devices in a process of their own."""
    precisions: Mapping[str, str] = field(default_factory=dict)
    """Device -> floating precision of its computation."""
    lower_defaults: Mapping[str, str] = field(default_factory=dict)
    """Device -> default precision of its own engine, if lower than the precision used."""
    precision_choice: str = ""
    """Precision that `Options(precision="auto")` chose, and the measured agreement of outputs with float32."""
    search: str = ""
    """Method that found the segments, in words."""
    refusal_costs: tuple[RefusalCost, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    branch_decisions: tuple[BranchDecisionFacts, ...] = ()
    machine: str = ""
    boundaries: Boundaries = field(default_factory=Boundaries)
    transfers: TransferFacts | None = None
    """Copies of the last run."""
    incidents: tuple[Incident, ...] = ()
    """Newest 64 failures of devices, in order."""
    incident_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Device -> class of the error -> number."""

    @property
    def unknown_flops_nodes(self) -> int:
        return sum(node.state == "runs" and node.flops is None for node in self.nodes)

    @property
    def guesses(self) -> frozenset[str]:
        return self.cost.guesses if self.cost is not None else frozenset()

    @property
    def branch_decisions_text(self) -> str:
        return decisions_text(
            BranchDecision(decision.condition, decision.value, decision.nodes) for decision in self.branch_decisions
        )

    @property
    def precision_remarks(self) -> tuple[str, ...]:
        """Sentences on the choice by `auto`, and on devices with a lower default."""
        advice = (
            f"{device} computes in {self.precisions[device]}; its own default on this machine is {default}, which is "
            "faster and less accurate: --precision device"
            for device, default in self.lower_defaults.items()
        )
        return tuple(filter(None, (self.precision_choice, *advice)))

    @property
    def fewest(self) -> str:
        words = "the fewest possible" if self.exact else "not proved to be the fewest"
        return f"{words}: {self.search}" if self.search else words

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, in which non-finite numbers are None."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}

    def refusals(self) -> Mapping[tuple[str, str, str], tuple[NodeFacts, ...]]:
        """Group the refused nodes by device, op type and reason, most frequent first."""
        nodes_by_refusal: dict[tuple[str, str, str], list[NodeFacts]] = {}
        for node in self.nodes:
            for refusal in node.refusals:
                nodes_by_refusal.setdefault((refusal.device, node.op_type, refusal.reason), []).append(node)
        ordered = sorted(nodes_by_refusal.items(), key=lambda item: (-len(item[1]), item[0]))
        return {key: tuple(nodes) for key, nodes in ordered}


def transfer_facts(transfers: Sequence[Transfer] | None) -> TransferFacts | None:
    """Summarize the transfers of a run between host and devices."""
    if transfers is None:
        return None
    into = [transfer for transfer in transfers if transfer.target != HOST]
    out = [transfer for transfer in transfers if transfer.target == HOST]
    made_on = {(transfer.value, transfer.source) for transfer in out}
    return TransferFacts(
        to_device=len(into),
        bytes_to_device=sum(transfer.nbytes for transfer in into),
        to_host=len(out),
        bytes_to_host=sum(transfer.nbytes for transfer in out),
        seconds=sum(transfer.seconds for transfer in transfers),
        round_trips=sum((transfer.value, transfer.target) in made_on for transfer in into),
    )


def incident_facts(incidents: Incidents | None) -> Mapping[str, Any]:
    """Return the report's fields about failures of devices."""
    if incidents is None:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for (device, kind), number in sorted(incidents.counts.items()):
        counts.setdefault(device, {})[kind] = number
    return {"incidents": incidents.newest, "incident_counts": counts}
