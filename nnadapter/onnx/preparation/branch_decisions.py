"""Branch decisions: values of If conditions that inputs decide. Independent of onnx."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MOST_DECIDING = 64
"""Largest deciding input in elements; it is read in every run."""
MOST_FORKS = 32
"""Maximum number of nested decisions."""
THEN, ELSE = "then_branch", "else_branch"


class BranchDecision(NamedTuple):
    """Condition of `If` nodes that inputs decided, with its value."""

    condition: str
    value: bool
    nodes: tuple[str, ...]
    """`If` nodes replaced by the branch."""
    key: bytes = b""
    """Key that is equal for the same condition in any variant of the model."""

    @property
    def text(self) -> str:
        return f"{self.condition} is {'true' if self.value else 'false'}"


Choice = tuple[BranchDecision, ...]
"""Decisions, outermost first."""


Truths = tuple[bool, ...]
"""Condition values in evaluation order."""


class Conditions(NamedTuple):
    """Model that computes conditions before a run."""

    inputs: tuple[str, ...]
    """Inputs whose contents decide."""
    shapes: tuple[str, ...]
    """Inputs whose shapes decide."""
    results: tuple[str, ...]
    """Names of the conditions: inputs, or outputs of `contents`."""
    contents: bytes
    """Serialized model that reads `inputs`, then the shapes of `shapes`; empty if all conditions are inputs."""


def decisions_text(choice: Iterable[BranchDecision]) -> str:
    """Return the decisions in words."""
    return " and ".join(dict.fromkeys(decision.text for decision in choice))


def decision_values(choice: Choice) -> Truths:
    """Return the decisions' values, which identify the variant of the model."""
    return tuple(decision.value for decision in choice)
