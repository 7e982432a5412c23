"""Facts of a report: frozen values that every rendering is made from, and their JSON form.

One set of facts about a plan; every rendering is made from it, and none is known here.

The report speaks of the model's own nodes: each runs on a device (alone, or fused into something), or was folded before
the run, or is used by nobody.
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
    """Return dataclasses and mappings as dicts, tuples as lists, numbers as Python's; what is not finite is None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    # What drivers say of a segment may be numpy's numbers, and need not be finite.
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def to_lines(data: Mapping[str, Any]) -> str:
    """Return JSON text with a line per key, and a line per item of a list of objects.

    Large reports are smaller so and sooner written than with every key on its own line, and what differs between two
    files is a whole node or segment.
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
"""Sources that nobody measured: limits that a device declares, or less."""
NOTHING = 1e-9
"""Seconds that are not worth telling: sums of the same prices in another order differ by less."""
_NAMED = 3
"""Names in a row that stands for many entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFacts:
    """A plan that was weighed."""

    name: str
    """As a person reads it: `all on the cpu`, `everything supported`."""
    seconds: float | None
    """Its predicted cost; None where nothing is known of it."""
    measured_seconds: float | None = None
    """What it took here, where it was compiled and timed."""
    eligible: bool = True
    """Whether it could have been chosen; if not, a plan file or rules do not allow it, and it is there to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """What the plan costs, in seconds of one run, and how good that is."""

    seconds: float
    """Of the plan in this report: predicted, or measured where it was chosen by timing."""
    bound_seconds: float | None = None
    """No plan of those that `bound_of` names costs less by the same prices."""
    bound_of: str = "any placement"
    """What the bound is of, in words: any placement, or any that keeps to the plan file and the rules."""
    bound_kind: str = ""
    """Where the bound comes from, in words."""
    gap: float | None = None
    """`seconds` over `bound_seconds`, less one: 0.05 is 5 % above the bound."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> where `seconds` come from: `measured`, `calibrated`, `simulated`, `modeled` or `assumed`."""
    predicted_seconds: float | None = None
    """Of the plan in this report, predicted, be it measured or not; None where costs are not known."""
    prediction_sources: Mapping[str, str] = field(default_factory=dict)
    """Device -> where what is predicted of plans, segments and nodes comes from, likewise."""
    candidates: tuple[CandidateFacts, ...] = ()
    """Plans that were weighed against each other, in the order in which they were weighed."""
    all_cpu_seconds: float | None = None
    """Of everything on the CPU, whatever rules and a plan file say: measured where the plan is, else predicted."""
    all_cpu_predicted_seconds: float | None = None
    """The same, predicted."""
    note: str = ""
    """What the figures do not say: an estimate that rests on assumptions, say."""

    @property
    def is_measured(self) -> bool:
        """The plan was timed here."""
        return set(self.sources.values()) == {"measured"}

    @property
    def word(self) -> str:
        """What `seconds` are: `measured`, `predicted` or, where the costs of a device are a guess, `guessed`."""
        return "measured" if self.is_measured else self.predicted_word

    @property
    def predicted_word(self) -> str:
        """What is not measured: `predicted`, or `guessed`."""
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
        """Seconds of this plan, of the CPU alone, and what both are: see `word`; None if not known."""
        if self.all_cpu_seconds is not None:
            return self.seconds, self.all_cpu_seconds, self.word
        if self.predicted_seconds is None or self.all_cpu_predicted_seconds is None:
            return None
        return self.predicted_seconds, self.all_cpu_predicted_seconds, self.predicted_word

    @property
    def cpu_is_better(self) -> bool:
        """The CPU alone is faster than this plan: both measured, or both predicted."""
        return self.against_cpu is not None and self.against_cpu[0] - self.against_cpu[1] >= NOTHING


def predicted_word(sources: Mapping[str, str]) -> str:
    """What to call a time that rests on such costs: `predicted`, or `guessed` where nobody measured one of them."""
    return "guessed" if GUESSES.intersection(sources.values()) else "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCost:
    """What it causes between devices that one of them refuses an op type for one reason."""

    device: str
    op_type: str
    reason: str
    """A code of `partition.Reason`."""
    switches: int
    """So many less if the device took these nodes and all others stayed; negative where there would be more."""
    seconds: float | None
    """Predicted, of the transfers and launches that would go; None where costs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A rule that a person gave, and what it came to."""

    text: str
    """The rule in one line."""
    source: str = ""
    """Where it stands: `pin 2 in rules.toml`."""
    nodes: int = 0
    """How many nodes it binds; 0 where it binds nothing, which is said."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFileFacts:
    """The plan file that placed nodes."""

    path: str
    matched_nodes: int
    """Nodes that it placed."""
    unmatched_entries: tuple[UnmatchedEntry, ...] = ()
    """Those that mean no node here, and those that a device, a rule or a limit does not let have their way."""

    def lost_groups(self) -> tuple[tuple[str, str, str], ...]:
        """What is lost in few words: names of entries that share device and reason, the device, and the reason."""
        groups: dict[tuple[str, str], list[str]] = {}
        for entry in self.unmatched_entries:
            groups.setdefault((entry.device, entry.reason), []).append(entry.name)
        return tuple((_named(names), device, why) for (device, why), names in groups.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Bytes of constants that segments hold; what two segments of a device share counts once."""

    devices: Mapping[str, int] = field(default_factory=dict)
    """By device."""
    total: int = 0
    """Of them all; what two devices share counts once."""


SCHEMA_VERSION = 2
"""Of the JSON form; it grows when something that programs read changes its meaning or goes.

New keys do not raise it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalFacts:
    """Why a device did not take a node."""

    device: str
    reason: str
    """A code of `partition.Reason`."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFacts:
    """A graph that a node runs: a branch of If, the body of Loop or Scan. It runs where its node does."""

    name: str
    """The attribute that holds it."""
    op_types: Mapping[str, int]
    """How many nodes of each op type it has, those of graphs inside included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What becomes of one of the model's own nodes."""

    name: str
    op_type: str
    domain: str
    state: str
    """`runs`, `folded` (its result is known before the run) or `unused` (nobody reads its result)."""
    device: str = ""
    segment: int | None = None
    runs_as: str = ""
    """What it runs as on its device, where the device says so; nodes of the same text are fused."""
    flops: int | None = None
    """None where no formula is known, or its sizes are not."""
    nbytes: int = 0
    """Bytes it reads and makes, weights included."""
    refusals: tuple[RefusalFacts, ...] = ()
    """Of every device that did not take it, in the order of preference."""
    bodies: tuple[BodyFacts, ...] = ()
    """The graphs that it runs."""
    predicted_seconds: float | None = None
    """Its cost on its device, where costs are known; what is fused is shared out by FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A value that crosses the border of a segment."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What the session's cache did for a segment."""

    hit: bool
    """Its program was kept, and is used."""
    miss_reason: str
    """Why it was compiled: which part of the key differed from the nearest entry, and why it is not kept, if it is not;
    empty for a hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One segment of the plan."""

    index: int
    device: str
    nodes: tuple[str, ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    flops: int
    weight_bytes: int
    facts: Mapping[str, int | float | str | None]
    """What the device said of it; None stands for a number that is not finite."""
    seconds: float | None = None
    """Duration of the last run, if there was one."""
    unknown_flops_nodes: int = 0
    """Of its nodes, those whose FLOPs are not known, and not in `flops`."""
    failures: tuple[str, ...] = ()
    """Why it ran elsewhere, if it did."""
    predicted_seconds: float | None = None
    """Predicted duration of a run, with `transfer_seconds` and `launch_seconds`."""
    transfer_seconds: float | None = None
    """Predicted, for its inputs and outputs."""
    launch_seconds: float | None = None
    """Predicted, for starting it."""
    benefit_seconds: float | None = None
    """Predicted saving against running its nodes on the CPU; below 0 it costs."""
    compile_seconds: float | None = None
    """What compiling it took, where it was compiled."""
    program_of: int | None = None
    """The segment that was compiled for it: it runs that one's program, with constants of its own."""
    cache: CacheFacts | None = None
    """None where the session has no cache, or nothing was compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDecisionFacts:
    """A condition that inputs decide, and what it is where the plan is run."""

    condition: str
    """An input, or how it is computed of some."""
    value: bool
    nodes: tuple[str, ...]
    """The `If` nodes in whose place the branch stands that is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFacts:
    """What a run copied between the host and devices with memory of their own, where values stay."""

    to_device: int
    """Tensors brought to devices."""
    bytes_to_device: int
    to_host: int
    """Tensors taken from devices."""
    bytes_to_host: int
    seconds: float
    """Of all of them."""
    round_trips: int
    """Tensors brought to a device that had made them in the same run."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares on other devices than `cpu` and `reference`, from 0 to 1."""

    nodes: float
    """Of the model's own nodes that run."""
    flops: float
    """Of the floating-point operations that are known, a multiply-add being two; the share of nodes where none are."""
    bytes: float
    """Of bytes read and made by nodes, weights included."""


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """What runs where and why; `PartitionReport` adds the renderings."""

    devices: tuple[str, ...]
    policy: str
    input_shapes: Mapping[str, tuple[int, ...]]
    coverage: Coverage
    segments: tuple[SegmentFacts, ...]
    nodes: tuple[NodeFacts, ...]
    switches: int
    exact: bool
    """No plan with fewer segments exists for this placement."""
    notes: tuple[str, ...] = ()
    """What did not go as promised."""
    plans: PlanCounts | None = None
    """How the plans of the session were used; None for a report that compiled nothing."""
    caches: tuple[CacheCounts, ...] = ()
    """How what is remembered was used in the process of the session; empty for a report that compiled nothing."""
    weights: WeightFacts = field(default_factory=WeightFacts)
    cost: CostFacts | None = None
    """None where no costs are known."""
    cost_note: str = ""
    """Why none are known, and what to do about it."""
    rules: tuple[RuleFacts, ...] = ()
    """In the order in which they were given."""
    plan_file: PlanFileFacts | None = None
    model: str = ""
    """The model's file, or its graph; empty where that is not known."""
    fallback: str = ""
    """The option of that name."""
    device_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Device -> option -> value as text, defaults filled in."""
    isolated: tuple[str, ...] = ()
    """Devices that have a process of their own."""
    search: str = ""
    """How the segments were found, in words: exactly, by a beam, or cut in two and why."""
    refusal_costs: tuple[RefusalCost, ...] = ()
    """What refusals cause between devices, of the most frequent ones."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of nnadapter, ONNX, ONNX Runtime and the devices' drivers, by name."""
    branch_decisions: tuple[BranchDecisionFacts, ...] = ()
    """What inputs choose where the plan is run; empty where they choose nothing, or whatever they choose."""
    machine: str = ""
    """Where the report was made: system, processor and number of cores."""
    boundaries: Boundaries = field(default_factory=Boundaries)
    """What happens to values at borders of segments: transfers, casts, changes of layout, and what stays."""
    transfers: TransferFacts | None = None
    """What the last run copied; None where there was none, or where no device has memory of its own."""
    incidents: tuple[Incident, ...] = ()
    """What devices failed to do in the session, the newest 64 in the order in which it happened."""
    incident_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How often in all: device -> class of the error -> number."""

    @property
    def unknown_flops_nodes(self) -> int:
        """How many nodes run whose FLOPs are not known."""
        return sum(node.state == "runs" and node.flops is None for node in self.nodes)

    @property
    def guesses(self) -> frozenset[str]:
        """Devices whose predicted times are guesses: nobody measured what they cost."""
        return self.cost.guesses if self.cost is not None else frozenset()

    @property
    def branch_decisions_text(self) -> str:
        """What inputs choose where the plan is run, in words; empty where it is run whatever they choose."""
        return decisions_text(
            BranchDecision(decision.condition, decision.value, decision.nodes) for decision in self.branch_decisions
        )

    @property
    def fewest(self) -> str:
        """Whether there could be fewer segments, and how they were found, in words."""
        words = "the fewest possible" if self.exact else "not proved the fewest"
        return f"{words}: {self.search}" if self.search else words

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: what JSON knows, and no number that is not finite.

        Keys, which stay:

        - `schema_version`: of this form.
        - `devices`: names, in order of preference; `isolated`: those in a process of their own; `policy`;
          `input_shapes`: input name -> dimensions.
        - `coverage`: `nodes`, `flops`, `bytes`, each from 0 to 1, on other devices than `cpu` and `reference`.
        - `segments`, in the order they run: `index`, `device`, `nodes` (names), `inputs` and `outputs` (each `name`,
          `dtype`, `shape`, `nbytes`), `flops`, `weight_bytes`, `facts` (what the device says of it), `seconds` (of the
          last run, else null), `unknown_flops_nodes` (of its nodes, those whose FLOPs are not known), `failures`, and
          in seconds, null where not known: `predicted_seconds` (transfers and launch included), `transfer_seconds`,
          `launch_seconds`, `benefit_seconds` (saved against running its nodes on the CPU), `compile_seconds`;
          `program_of` (the `index` of the segment whose program it runs, with constants of its own; null where it was
          compiled itself); `cache` (`hit`, and `miss_reason` not; null where there is none).
        - `nodes`, the model's own in its order: `name`, `op_type`, `domain`, `state` (`runs`, `folded`, `unused`),
          `device`, `segment` (an `index`, else null), `runs_as`, `flops` (null where unknown), `nbytes`, `refusals`
          (each `device`, `reason`, `detail`), `bodies` (of control flow: each `name`, `op_types` with their numbers),
          `predicted_seconds` (null where not known).
        - `switches`: from one device to another; `exact`: no plan with fewer segments exists.
        - `notes`; `plans` of a session: `in_cache`, `compiled`, `reused`, `evicted`, `memory_bytes` (of
          those kept, beside shared weights, as far as devices say so), `served_shapes_text` (which shapes a plan
          serves, in words; empty as long as only one set was seen), else null; `caches` of its process: each `name`,
          `hits`, `misses`, `failures`, `dropped`.
        - `weights`: bytes of constants, `devices` (name -> bytes; what two segments of a device share counts once) and
          `total` (what two devices share counts once).
        - `cost`, null where none is known: `seconds`, `bound_seconds`, `bound_of` (what it is a bound of, in words),
          `bound_kind`, `gap`, `sources` (of `seconds`; device -> `measured`, `calibrated`, `simulated`, `modeled` or
          `assumed`), `predicted_seconds` and `prediction_sources` (of what is predicted, beside what was measured),
          `candidates` (each `name`, `seconds` as predicted, `measured_seconds`, `eligible`: could be chosen),
          `all_cpu_seconds` (measured where `seconds` is), `all_cpu_predicted_seconds`, `note`; `cost_note`: why none is
          known, else empty.
        - `rules`: each `text`, `source` (where it stands), `nodes` (how many it binds), `note`.
        - `plan_file`, null without one: `path`, `matched_nodes` (nodes), `unmatched_entries` (entries: each `name`,
          `device`, `reason`).
        - `model`: the file's name or the graph's, empty where not known; `fallback`; `device_options`: device ->
          option -> value as text; `search`: how the segments were found, in words.
        - `refusal_costs` of the most frequent refusals: each `device`, `op_type`, `reason`, `switches` (so many less if
          the device took these nodes and all others stayed), `seconds` (predicted, of the transfers and launches that
          would go; null where not known).
        - `boundaries`: `operations` in the order in which they are done (each `kind`: `transfer`, `cast` or `layout`;
          `value`; `segment` that waits for it or made it, null for the caller; `source` and `target`, each `target`
          (the driver), `device_id`, `layout`, `dtype`; `nbytes`; `seconds` as predicted, null where not known), and
          `device_resident`: values that segments of a device with memory of its own share there (each `value`,
          `device`, `segments`, `nbytes`); `enqueued_segments` and `threaded_segments`: segments that are under way
          while the host goes on, as work of a stream or in a thread of their device; `host_waits` for them: each
          `device`, `segment` (the last one that is done then), `waiting_segment` (the segment that waits, null for the
          end of the run).
        - `transfers` of the last run to and from such memory, else null: `to_device` and `to_host` (how many),
          `bytes_to_device`, `bytes_to_host`, `seconds`, `round_trips` (brought to a device that had made them).
        - `incidents` of a session, the newest in the order in which they happened: each `stage` (`load`, `compile`,
          `run`, `accuracy`), `device`, `segment` (null where it did not get that far), `nodes` (names), `kind` (the
          error's class), `message`, `fallback_action` (what was done); `incident_counts` of all: device -> kind ->
          number.
        - `branch_decisions`, of a plan for some of the branches that inputs choose: each `condition` (in words),
          `value`, `nodes` (the `If` in whose place a branch stands).
        - `versions`: `nnadapter`, `onnx`, `onnxruntime`, and of the driver of each device by its name; `machine`.

        Keys may be added without a new `schema_version`.
        """
        return {"schema_version": SCHEMA_VERSION, **plain(self)}

    def refusals(self) -> Mapping[tuple[str, str, str], tuple[NodeFacts, ...]]:
        """The refused nodes by device, op type and reason, most frequent first."""
        nodes_by_refusal: dict[tuple[str, str, str], list[NodeFacts]] = {}
        for node in self.nodes:
            for refusal in node.refusals:
                nodes_by_refusal.setdefault((refusal.device, node.op_type, refusal.reason), []).append(node)
        ordered = sorted(nodes_by_refusal.items(), key=lambda item: (-len(item[1]), item[0]))
        return {key: tuple(nodes) for key, nodes in ordered}


def transfer_facts(transfers: Sequence[Transfer] | None) -> TransferFacts | None:
    """Return what a run copied; None for a run that could not."""
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
    """Return the fields of a report that tell of incidents, by name; none where there is no session."""
    if incidents is None:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for (device, kind), number in sorted(incidents.counts.items()):
        counts.setdefault(device, {})[kind] = number
    return {"incidents": incidents.newest, "incident_counts": counts}
