"""What-if as facts: what each missing feature would be worth, and in which order to add them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnadapter.reports.cost_facts import predicted_word
from nnadapter.reports.plain import plain

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the plans of all models are together."""

    seconds: float | None
    """Predicted, one run of each model; None where a value would have to cross a border that it cannot cross, or where
    costs are not known."""
    segments: int
    nodes: float
    """Share of the nodes that run off the CPU, from 0 to 1."""
    flops: float
    """Share of the known FLOPs off the CPU, from 0 to 1; the share of nodes where none are known."""
    uncounted: int = 0
    """Nodes whose FLOPs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """A feature that the device lacks, and what it alone would be worth."""

    label: str
    """In a few words: `Erf`, `Pow of float64`."""
    reason: str
    """A code of `partition.Reason`."""
    op_type: str
    """Empty where the reason is about whole segments."""
    what: str
    """The data type, rank, attribute or version; empty where the op alone says it."""
    where: str
    """`device`, or `converter` where nnadapter cannot offer it to a device yet."""
    nodes: int
    """That are refused for lack of it, and may lack more."""
    models: int
    """In which there are such nodes."""
    segments_saved: int
    """Negative where there would be more."""
    seconds_saved: float | None
    """Predicted; negative where the plans would be slower, None where they could not run or costs are not known."""
    then: Standing
    """With this feature and no other one."""
    example_model: str
    example_node: str
    """The first such node."""
    example_detail: str
    """Its refusal in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoadStep:
    """What to add next: most often one feature, several where only together they are worth something."""

    labels: tuple[str, ...]
    segments_saved: int
    """By this step, those before it taken."""
    seconds_saved: float | None
    """By this step."""
    then: Standing
    """With all steps up to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One of the models."""

    name: str
    input_shapes: Mapping[str, tuple[int, ...]]
    now: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedModel:
    """A model that could not be read or placed."""

    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFacts:
    """What a device lacks for some models, ranked; `WhatIf` adds the renderings."""

    device: str
    """The one that would learn."""
    devices: tuple[str, ...]
    """Of the plans, in order of preference."""
    policy: str
    sources: Mapping[str, str]
    """Device -> where its costs come from."""
    ranked_by: tuple[str, ...]
    """Fields by which features are ranked, the first one first."""
    now: Standing
    features: tuple[FeatureFacts, ...]
    """Each by itself, best first."""
    road_map: tuple[RoadStep, ...]
    """The best first, then the best given that one, and so on: features combine, so sums of `features` mislead."""
    models: tuple[ModelFacts, ...]
    failed: tuple[FailedModel, ...] = ()
    left_out: int = 0
    """Features that were not tried: the least frequent ones, where there are very many."""
    notes: tuple[str, ...] = ()
    """What a person should know of the numbers, a sentence each."""
    all_cpu_seconds: float | None = None
    """Predicted, one run of each model with everything on the CPU; None where it refuses something, or costs are not
    known."""

    @property
    def is_timed(self) -> bool:
        """Whether times are told: somebody knows what every device costs."""
        return "assumed" not in self.sources.values()

    @property
    def word(self) -> str:
        """What times are: `predicted`, or `guessed` where the costs of a device are those that it declares."""
        return predicted_word(self.sources)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: `schema_version` and the fields."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}
