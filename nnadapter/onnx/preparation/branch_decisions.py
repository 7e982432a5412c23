"""Branch decisions: values of If conditions that inputs decide. Needs no onnx."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MOST_DECIDING = 64
"""Elements of an input that decides by its contents: they are looked at in every run."""
MOST_FORKS = 32
"""Of one model: where inputs choose, behind what they chose before."""
THEN, ELSE = "then_branch", "else_branch"


class BranchDecision(NamedTuple):
    """A condition that inputs decide, and what it decided."""

    condition: str
    """As a person reads it: an input, or how it is computed of some."""
    value: bool
    nodes: tuple[str, ...]
    """The `If` nodes in whose place the branch stands."""
    key: bytes = b""
    """Tells how the condition is computed: the same, whatever model of a choice computes it."""

    @property
    def text(self) -> str:
        """What was decided, in words."""
        return f"{self.condition} is {'true' if self.value else 'false'}"


Choice = tuple[BranchDecision, ...]
"""What was decided, the outermost first."""


Truths = tuple[bool, ...]
"""Which conditions hold, in the order in which they are asked."""


class Conditions(NamedTuple):
    """How conditions are told before a run."""

    inputs: tuple[str, ...]
    """Inputs of the model, whose contents decide."""
    shapes: tuple[str, ...]
    """Inputs whose shapes decide."""
    results: tuple[str, ...]
    """The conditions by name: an input, or an output of `contents`."""
    contents: bytes
    """A model of ONNX's that computes them from `inputs` and, behind these, `shapes`; empty where inputs are all."""


def decisions_text(choice: Iterable[BranchDecision]) -> str:
    """Return when a choice is made, in words."""
    return " and ".join(dict.fromkeys(decision.text for decision in choice))


def decision_values(choice: Choice) -> Truths:
    """Return what was decided, by which choices of one model are known."""
    return tuple(decision.value for decision in choice)
