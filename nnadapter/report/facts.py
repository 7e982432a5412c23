"""Facts of a report as frozen values, and their JSON form. All renderings are made from them.

Nodes are the model's own: each runs on a device, is folded before the run, or is unused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from nnadapter.drivers.tensor_copies import HOST, Transfer
from nnadapter.engine.fallback import Incident, Incidents
from nnadapter.engine.plan_store import PlanCounts
from nnadapter.onnx.preparation.branch_decisions import BranchDecision, decisions_text
from nnadapter.planning.overlap import Boundaries
from nnadapter.planning.plan_files import UnmatchedEntry
from nnadapter.process.resources import CacheCounts, memoize


def plain(value: Any) -> Any:
    """Convert dataclasses, mappings, tuples and numpy scalars to plain data; non-finite numbers become None."""
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
    """Return JSON text with one line per key and per object in a list.

    This is smaller and faster than full indentation, and diffs show entire nodes or segments.
    """
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_value(value)}" for key, value in data.items()) + "\n}"


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(item, allow_nan=False)}" for item in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


@memoize(256)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


GUESSES = frozenset({"modeled", "assumed"})
"""Cost sources that are not measurements."""
NOTHING = 1e-9
"""Seconds below which differences are rounding errors."""
_NAMED = 3
"""Names to show for a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFacts:
    """Candidate plan that was considered."""

    name: str
    """Name for people: `all on the cpu`, `everything supported`."""
    seconds: float | None
    """Predicted cost; None if unknown."""
    measured_seconds: float | None = None
    """Measured time, if it was compiled and timed."""
    eligible: bool = True
    """False if a plan file or rules exclude it; it is then listed for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """Cost of the plan in seconds per run, with a lower bound."""

    seconds: float
    """Cost of this plan: measured if it was chosen by timing, otherwise predicted."""
    bound_seconds: float | None = None
    """Lower bound of all plans named by `bound_of`, at the same prices."""
    bound_of: str = "any placement"
    """Plans that the bound covers, in words: any placement, or any that obeys the plan file and rules."""
    bound_kind: str = ""
    """Method of the bound, in words."""
    gap: float | None = None
    """`seconds` / `bound_seconds` - 1: 0.05 is 5 % above the bound."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> source of `seconds`: `measured`, `calibrated`, `simulated`, `modeled` or `assumed`."""
    predicted_seconds: float | None = None
    """Predicted cost of this plan, even if it was measured; None if costs are unknown."""
    prediction_sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> source of the predictions for plans, segments and nodes."""
    candidates: tuple[CandidateFacts, ...] = ()
    """Candidate plans, in the order considered."""
    all_cpu_seconds: float | None = None
    """Cost with everything on the CPU, ignoring rules and plan file: measured if the plan is, otherwise predicted."""
    all_cpu_predicted_seconds: float | None = None
    """Prediction for everything on the CPU."""
    note: str = ""
    """Caveats of the numbers, such as assumptions."""

    @property
    def is_measured(self) -> bool:
        """True if the plan was timed on this machine."""
        return set(self.sources.values()) == {"measured"}

    @property
    def word(self) -> str:
        """Word for `seconds`: `measured`, `predicted`, or `guessed` if costs of a device are not measured."""
        return "measured" if self.is_measured else self.predicted_word

    @property
    def predicted_word(self) -> str:
        """Word for predictions: `predicted` or `guessed`."""
        return predicted_word(self._predicting)

    @property
    def guesses(self) -> frozenset[str]:
        """Devices whose predicted times are guesses."""
        return frozenset(name for name, source in self._predicting.items() if source in GUESSES)

    @property
    def _predicting(self) -> Mapping[str, str]:
        return self.prediction_sources or ({} if self.is_measured else self.sources)

    @property
    def against_cpu(self) -> tuple[float, float, str] | None:
        """Seconds of this plan, seconds of the CPU alone, and the `word` for both; None if unknown."""
        if self.all_cpu_seconds is not None:
            return self.seconds, self.all_cpu_seconds, self.word
        if self.predicted_seconds is None or self.all_cpu_predicted_seconds is None:
            return None
        return self.predicted_seconds, self.all_cpu_predicted_seconds, self.predicted_word

    @property
    def cpu_is_better(self) -> bool:
        """True if the CPU alone is faster than this plan, comparing like with like."""
        return self.against_cpu is not None and self.against_cpu[0] - self.against_cpu[1] >= NOTHING


def predicted_word(sources: Mapping[str, str]) -> str:
    """Return `guessed` if a source is not a measurement, otherwise `predicted`."""
    return "guessed" if GUESSES.intersection(sources.values()) else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCost:
    """Cost of a device's refusals of one op type for one reason."""

    device: str
    op_type: str
    reason: str
    """Code of `partition.Reason`."""
    switches: int
    """Device switches saved if the device took these nodes and all others stayed; may be negative."""
    seconds: float | None
    """Predicted seconds of transfers and launches saved; None if costs are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """Rule of the user, and its effect."""

    text: str
    """Rule in one line."""
    source: str = ""
    """Location of the rule: `pin 2 in rules.toml`."""
    nodes: int = 0
    """Number of nodes that it binds; 0 is reported as having no effect."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFileFacts:
    """Plan file that placed nodes."""

    path: str
    matched_nodes: int
    """Number of nodes that it placed."""
    unmatched_entries: tuple[UnmatchedEntry, ...] = ()
    """Entries that match no node, or that a device, rule or limit overrides."""

    def lost_groups(self) -> tuple[tuple[str, str, str], ...]:
        """Group unmatched entries by device and reason: names as text, device, reason."""
        groups: dict[tuple[str, str], list[str]] = {}
        for entry in self.unmatched_entries:
            groups.setdefault((entry.device, entry.reason), []).append(entry.name)
        return tuple((_named(names), device, why) for (device, why), names in groups.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Bytes of constants in segments; constants shared within a device count once."""

    devices: Mapping[str, int] = field(default_factory=dict)
    """Bytes by device."""
    total: int = 0
    """Total; constants shared between devices count once."""


SCHEMA_VERSION = 2
"""Version of the JSON form. It grows when a key is removed or changes its meaning, not when keys are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalFacts:
    """Refusal of a node by a device."""

    device: str
    reason: str
    """Code of `partition.Reason`."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """Graph inside a node: a branch of If, or the body of Loop or Scan. It runs on the node's device."""

    name: str
    """Attribute that holds the graph."""
    op_types: Mapping[str, int]
    """Number of nodes by op type, including nested graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Fate of one of the model's own nodes."""

    name: str
    op_type: str
    domain: str
    state: str
    """`runs`, `folded` (computed before the run) or `unused` (its result is never read)."""
    device: str = ""
    segment: int | None = None
    runs_as: str = ""
    """Device's description of the node's operation, if any; nodes with the same text are fused."""
    flops: int | None = None
    """None if there is no formula, or sizes are unknown."""
    nbytes: int = 0
    """Bytes of inputs and outputs, including weights."""
    refusals: tuple[RefusalFacts, ...] = ()
    """Refusals of devices, in order of preference."""
    bodies: tuple[BodyFacts, ...] = ()
    """Graphs inside the node."""
    predicted_seconds: float | None = None
    """Predicted time on its device, if costs are known; the time of fused nodes is divided by FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """Value that crosses a segment's boundary."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Use of the session's cache for a segment."""

    hit: bool
    """True if the cached program was used."""
    miss_reason: str
    """Reason for compiling: the part of the key that differs from the nearest entry, and why it is not cached, if so.
    Empty for a hit.
    """


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
    """Facts of the device about the segment; None is a non-finite number."""
    seconds: float | None = None
    """Duration in the last run; None if there was none."""
    unknown_flops_nodes: int = 0
    """Number of nodes whose FLOPs are unknown and missing in `flops`."""
    failures: tuple[str, ...] = ()
    """Reasons why it ran elsewhere."""
    predicted_seconds: float | None = None
    """Predicted duration of a run, including `transfer_seconds` and `launch_seconds`."""
    transfer_seconds: float | None = None
    """Predicted time to transfer inputs and outputs."""
    launch_seconds: float | None = None
    """Predicted time to launch it."""
    benefit_seconds: float | None = None
    """Predicted saving compared with the CPU; negative if the segment is slower."""
    compile_seconds: float | None = None
    """Compile time; None if it was not compiled here."""
    program_of: int | None = None
    """Index of the segment whose program it runs with its own constants; None if it has its own program."""
    cache: CacheFacts | None = None
    """None if the session has no cache, or nothing was compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDecisionFacts:
    """Condition that inputs decide, and the value that the plan is for."""

    condition: str
    """Condition in words: an input, or an expression of inputs."""
    value: bool
    nodes: tuple[str, ...]
    """`If` nodes that the chosen branch replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """Copies of a run between the host and devices with memory of their own."""

    to_device: int
    """Number of tensors copied to devices."""
    bytes_to_device: int
    to_host: int
    """Number of tensors copied to the host."""
    bytes_to_host: int
    seconds: float
    """Total time of the copies."""
    round_trips: int
    """Number of tensors copied back to the device that produced them in the same run."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of work on devices other than `cpu` and `reference`, from 0 to 1."""

    nodes: float
    """Share of the model's own nodes that run."""
    flops: float
    """Share of known FLOPs, counting a multiply-add as two; the share of nodes if none are known."""
    bytes: float
    """Share of bytes read and written by nodes, including weights."""


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """Facts about a plan; `PartitionReport` adds the renderings."""

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
    """Use of the process's caches; empty if nothing was compiled."""
    weights: WeightFacts = field(default_factory=WeightFacts)
    cost: CostFacts | None = None
    """None if costs are unknown."""
    cost_note: str = ""
    """Reason why costs are unknown, with advice."""
    rules: tuple[RuleFacts, ...] = ()
    """Rules in the order of the user."""
    plan_file: PlanFileFacts | None = None
    model: str = ""
    """File name or graph name of the model; empty if unknown."""
    fallback: str = ""
    """`Options.fallback` in words."""
    device_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Device -> option -> value as text, including defaults."""
    isolated: tuple[str, ...] = ()
    """Devices in a process of their own."""
    search: str = ""
    """Method that found the segments, in words: exact, beam search, or a cut in two with its reason."""
    refusal_costs: tuple[RefusalCost, ...] = ()
    """Costs of the most frequent refusals."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of nnadapter, ONNX, ONNX Runtime and drivers, by name."""
    branch_decisions: tuple[BranchDecisionFacts, ...] = ()
    """Branch decisions that the plan is for; empty if it is for all."""
    machine: str = ""
    """Machine that wrote the report: operating system, processor and number of cores."""
    boundaries: Boundaries = field(default_factory=Boundaries)
    """Transfers, casts and layout changes between segments, and device-resident values."""
    transfers: TransferFacts | None = None
    """Copies of the last run; None if there was none, or no device has memory of its own."""
    incidents: tuple[Incident, ...] = ()
    """Newest 64 failures of devices in the session, in order."""
    incident_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Total number of failures: device -> class of the error -> number."""

    @property
    def unknown_flops_nodes(self) -> int:
        """Number of running nodes with unknown FLOPs."""
        return sum(node.state == "runs" and node.flops is None for node in self.nodes)

    @property
    def guesses(self) -> frozenset[str]:
        """Devices whose predicted times are guesses, because their costs are not measured."""
        return self.cost.guesses if self.cost is not None else frozenset()

    @property
    def branch_decisions_text(self) -> str:
        """Branch decisions that the plan is for, in words; empty if it is for all."""
        return decisions_text(
            BranchDecision(decision.condition, decision.value, decision.nodes) for decision in self.branch_decisions
        )

    @property
    def fewest(self) -> str:
        """Optimality of the number of segments, and the method that found them, in words."""
        words = "the fewest possible" if self.exact else "not proved the fewest"
        return f"{words}: {self.search}" if self.search else words

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON data, without non-finite numbers.

        Stable keys:

        - `schema_version`; `devices` in order of preference; `isolated`; `policy`; `input_shapes`: name -> dimensions.
        - `coverage`: `nodes`, `flops`, `bytes` on devices other than `cpu` and `reference`, from 0 to 1.
        - `segments`, in order of execution: `index`, `device`, `nodes` (names), `inputs` and `outputs` (each `name`,
          `dtype`, `shape`, `nbytes`), `flops`, `unknown_flops_nodes`, `weight_bytes`, `facts` (from the device),
          `failures`, `program_of` (index of the segment whose program it shares, or null), `cache` (null, or `hit` and
          `miss_reason`), and seconds or null: `seconds` (last run), `predicted_seconds` (total), `transfer_seconds`,
          `launch_seconds`, `benefit_seconds` (saved compared with the CPU), `compile_seconds`.
        - `nodes`, the model's own in order: `name`, `op_type`, `domain`, `state` (`runs`, `folded`, `unused`),
          `device`, `segment` (index or null), `runs_as`, `flops` (null if unknown), `nbytes`, `refusals` (each
          `device`, `reason`, `detail`), `bodies` (each `name`, `op_types` with counts), `predicted_seconds` (or null).
        - `switches` between devices; `exact`: no plan has fewer segments; `search`: method, in words; `notes`.
        - `plans` of a session, or null: `in_cache`, `compiled`, `reused`, `evicted`, `memory_bytes` (without shared
          weights, as far as known), `served_shapes_text`; `caches`: each `name`, `hits`, `misses`, `failures`,
          `dropped`.
        - `weights`: `devices` (name -> bytes, shared constants once per device), `total` (shared constants once).
        - `cost`, or null with a reason in `cost_note`: `seconds`, `bound_seconds`, `bound_of`, `bound_kind`, `gap`,
          `sources` (device -> `measured`, `calibrated`, `simulated`, `modeled` or `assumed`), `predicted_seconds`,
          `prediction_sources`, `candidates` (each `name`, predicted `seconds`, `measured_seconds`, `eligible`),
          `all_cpu_seconds`, `all_cpu_predicted_seconds`, `note`.
        - `rules`: each `text`, `source`, `nodes` (number bound), `note`.
        - `plan_file`, or null: `path`, `matched_nodes` (number), `unmatched_entries` (each `name`, `device`, `reason`).
        - `model`; `fallback`; `device_options`: device -> option -> value as text; `versions`; `machine`.
        - `refusal_costs`: each `device`, `op_type`, `reason`, `switches` and predicted `seconds` (or null) saved if the
          device took these nodes.
        - `boundaries`: `operations` in order (each `kind`: `transfer`, `cast` or `layout`; `value`; `segment` that
          waits for it or produced it, null for the caller; `source` and `target`, each `target` (driver), `device_id`,
          `layout`, `dtype`; `nbytes`; `seconds` or null), `device_resident` (each `value`, `device`, `segments`,
          `nbytes`), `enqueued_segments` (on a stream), `threaded_segments`, `host_waits` (each `device`, `segment`
          awaited, `waiting_segment`, null for the end of the run).
        - `transfers` of the last run, or null: `to_device`, `to_host` (numbers), `bytes_to_device`, `bytes_to_host`,
          `seconds`, `round_trips`.
        - `incidents`, newest 64 in order: each `stage` (`load`, `compile`, `run`, `accuracy`), `device`, `segment` (or
          null), `nodes` (names), `kind` (error class), `message`, `fallback_action`; `incident_counts`: device -> kind
          -> number.
        - `branch_decisions`: each `condition` (in words), `value`, `nodes` (the replaced `If` nodes).
        """
        return {"schema_version": SCHEMA_VERSION, **plain(self)}

    def refusals(self) -> Mapping[tuple[str, str, str], tuple[NodeFacts, ...]]:
        """Return refused nodes by device, op type and reason, most frequent first."""
        nodes_by_refusal: dict[tuple[str, str, str], list[NodeFacts]] = {}
        for node in self.nodes:
            for refusal in node.refusals:
                nodes_by_refusal.setdefault((refusal.device, node.op_type, refusal.reason), []).append(node)
        ordered = sorted(nodes_by_refusal.items(), key=lambda item: (-len(item[1]), item[0]))
        return {key: tuple(nodes) for key, nodes in ordered}


def transfer_facts(transfers: Sequence[Transfer] | None) -> TransferFacts | None:
    """Return the copies of a run; None if there was no run that could copy."""
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
    """Return the report's fields about incidents; none without a session."""
    if incidents is None:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for (device, kind), number in sorted(incidents.counts.items()):
        counts.setdefault(device, {})[kind] = number
    return {"incidents": incidents.newest, "incident_counts": counts}
