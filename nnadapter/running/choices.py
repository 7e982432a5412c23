"""Plans by what inputs choose: a model for each choice of branches, with the branches in place of their `If`.

A device that holds no `If` takes nothing of a model that stands inside of one. Where inputs decide which branch is
taken (`preparation.decisions`), each choice is a model of its own, planned when a run first makes it, and its plans are
plans of the session like others: under keys of their own, bounded and counted together, by classes of shapes.
The model as it was given serves what chooses nothing of this kind: where a choice gives devices nothing that is inside
of an `If`, where its branches contradict themselves, and beyond so many choices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, product
from typing import Any
from weakref import proxy, ref

from nnadapter.errors import CompilationError, InvalidModelError, NNAdapterError
from nnadapter.onnx.preparation.choice import MOST_FORKS, Choice, Truths, decision_values, in_words
from nnadapter.onnx.preparation.decisions import DecidingConditions, decided, decision_of
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.planning.settling import Partitioning
from nnadapter.process.cache import Cache
from nnadapter.running.by_plans import InputShapes, Left, Taken
from nnadapter.running.compiled import Compiled
from nnadapter.running.deciding import Fork
from nnadapter.running.model_plans import ModelPlans, SessionPlans

MOST_CHOICES = 8
"""Of a session that have plans of their own."""
MOST_AHEAD = 4
"""Choices that are planned before a run makes them, where somebody asks for plans ahead."""
_MOST_LEFT = 256
"""Sets of shapes of which it is remembered that the model as it was given serves them."""
_MOST_IN_VAIN = 4
"""Sets of shapes at which a choice gave devices nothing; after them it is not tried any more, if it never did."""


class NothingGainedError(NNAdapterError):
    """A choice gives devices nothing that is inside of an `If`. Nobody outside of this room sees it."""


def refuse_without_gain(partitioning: Partitioning) -> None:
    """Raise `NothingGainedError` if no accelerator has a node of a branch that inputs chose, though the host has.

    Of branches that hold nothing but constants no node is left: who has one behind them reads these.
    """
    names = [name for taken in partitioning.model.prepared.choice for name in taken.nodes]
    inside = re.compile(f"(?:{'|'.join(map(re.escape, names))})_*/")
    accelerators, nodes = partitioning.setting.accelerators, partitioning.plan.graph.nodes
    on = {step.device for step in partitioning.plan.steps}
    with_branches = {
        step.device for step in partitioning.plan.steps if any(inside.match(nodes[index].name) for index in step.nodes)
    }
    if accelerators.isdisjoint(with_branches or on):
        raise NothingGainedError("no accelerator takes a node of the branches that are chosen")


@dataclass(eq=False)
class Chosen:
    """A choice and its plans."""

    plans: ModelPlans
    left: Cache[InputShapes, bool] = field(default_factory=lambda: Cache("shapes of choices", _MOST_LEFT))
    """Shapes that the model as it was given serves."""
    has_gained: bool = False
    in_vain: int = 0

    @property
    def prepared(self) -> Prepared:
        """The model, which says what was chosen."""
        return self.plans.planner.prepared

    @property
    def is_given_up(self) -> bool:
        """Whether it is not tried any more."""
        return not self.has_gained and self.in_vain >= _MOST_IN_VAIN

    def serves(self, shapes: InputShapes) -> bool:
        """Whether its plans are asked for at these shapes."""
        return not self.is_given_up and not (len(self.left) and self.left.get(shapes))

    def keeps_to(self, plans: ModelPlans) -> bool:
        """Whether these plans serve it at other shapes, too."""
        return self.plans is plans or self.is_given_up

    def admit(self, partitioning: Partitioning) -> None:
        """Raise NothingGainedError if devices never gained anything by it, nor do they now."""
        if not self.has_gained:
            refuse_without_gain(partitioning)


class Choices:
    """The choices of one session; usable from many threads.

    Args:
        decision: what inputs decide of the model.
        own: the plans of the model as it was given.
        session: what its plans share with those of choices.
    """

    def __init__(self, decision: DecidingConditions, own: ModelPlans, session: SessionPlans) -> None:
        self._own, self._session, self._plans = Chosen(own), session, session.plans
        self._made: dict[Choice, Chosen] = {}
        self._decisions: dict[Truths, DecidingConditions] = {}
        self._contradicted: list[Truths] = []
        self._forks, self._numbers = count(2), count(1)  # the first is here
        self.note = ""
        """What is said of choices that are too many; empty where they are not."""
        self._fork = self._fork_of(decision)

    def chosen(self, feed: Mapping[str, Any] | None) -> Chosen:
        """What a checked feed chooses; without one, what is chosen where every condition holds."""
        if feed is not None:
            return self._fork.chosen(feed)
        behind: Fork[Chosen] | Chosen = self._fork
        while isinstance(behind, Fork):
            behind = behind.behind((True,) * behind.count)
        return behind

    def take(
        self, use: object, shapes: InputShapes, feed: Mapping[str, Any] | None = None, chosen: Chosen | None = None
    ) -> Taken[Compiled]:
        """See `ModelPlans.take`: the plan of what a feed chooses, or of a choice."""
        chosen = self.chosen(feed) if chosen is None else chosen
        taken = self._taken(chosen, use, shapes, lambda: chosen.plans.take(use, shapes, feed))
        return taken or self._own.plans.take(use, shapes, feed)

    def take_open(self, use: object, shapes: InputShapes, chosen: Chosen) -> Taken[Compiled] | None:
        """See `ModelPlans.take_open`."""
        taken = self._taken(chosen, use, shapes, lambda: chosen.plans.take_open(use, shapes))
        is_left = chosen is self._own or not chosen.serves(shapes)
        return self._own.plans.take_open(use, shapes) if taken is None and is_left else taken

    def of(self, choice: Choice) -> ModelPlans:
        """The plans of a choice; of the model as it was given, where that is none of those made."""
        return self._made.get(choice, self._own).plans

    @property
    def decisions(self) -> Mapping[Truths, DecidingConditions]:
        """What inputs decide, behind what was decided before."""
        return dict(self._decisions)

    @property
    def left(self) -> Left:
        """The choices that the model as it was given serves, since they gain nothing or contradict themselves."""
        left: dict[Truths, frozenset[InputShapes] | None] = dict.fromkeys(list(self._contradicted))
        for choice, chosen in list(self._made.items()):
            if chosen.is_given_up or len(chosen.left):
                left[decision_values(choice)] = None if chosen.is_given_up else frozenset(chosen.left.keys())
        return left

    @property
    def made(self) -> Sequence[ModelPlans]:
        """The plans of those that were made."""
        return [entry.plans for entry in list(self._made.values())]

    @property
    def ahead(self) -> Sequence[Chosen]:
        """Every choice, if they are few; else the model as it was given."""
        found = dict[Chosen, None]()
        for chosen in self._each(self._fork):
            found[chosen] = None
            if len(found) > MOST_AHEAD:
                self.note = (
                    f"inputs choose among more than {MOST_AHEAD} forms of the model: ahead of runs it is planned as it "
                    "was given"
                )
                return [self._own]
        return list(found)

    @property
    def text(self) -> str:
        """Which shapes a plan of each choice serves, in words."""
        texts = ((entry.prepared.choice, entry.plans.sizes_text) for entry in list(self._made.values()))
        return "; ".join(f"where {in_words(choice)}: {text}" for choice, text in texts if text)

    def _taken(
        self, chosen: Chosen, use: object, shapes: InputShapes, take: Callable[[], Taken[Compiled] | None]
    ) -> Taken[Compiled] | None:
        """What is taken of the plans of a choice; None where the model as it was given serves these shapes."""
        if chosen is self._own or not chosen.serves(shapes):
            return None
        try:
            taken = take()
        except NothingGainedError:
            chosen.in_vain += 1
        except (CompilationError, InvalidModelError):
            pass  # as it was given, the model may run there, or fail in the words that it always had
        else:
            chosen.has_gained |= taken is not None
            return taken
        chosen.left.keep(shapes, True)
        self._plans.users.pop(use, None)
        self._plans.close_unused()
        return None

    def _each(self, fork: Fork[Chosen]) -> Iterator[Chosen]:
        """What may be chosen; not all of it where that is much."""
        for truths in islice(product((True, False), repeat=fork.count), MOST_AHEAD + 1):
            behind = fork.behind(truths)
            if isinstance(behind, Fork):
                yield from self._each(behind)
            else:
                yield behind

    def _fork_of(self, decision: DecidingConditions) -> Fork[Chosen]:
        self._decisions[decision_values(decision.prepared.choice)] = decision
        # Where conditions cannot be told, whoever runs the model as it was given meets the same, and says so.
        own: Choices = proxy(self)  # which has the fork
        return Fork(decision.conditions, lambda truths: own._behind(decision, truths), lambda error: own._own)

    def _behind(self, decision: DecidingConditions, truths: Truths) -> Fork[Chosen] | Chosen:
        if len(self._made) >= MOST_CHOICES or next(self._forks) > MOST_FORKS:
            return self._own
        try:
            prepared = decided(decision, truths)
        except InvalidModelError:
            self._contradicted.append((*decision_values(decision.prepared.choice), *truths))
            return self._own
        further = decision_of(prepared)
        if further is not None:
            return self._fork_of(further)
        made = self._made[prepared.choice] = self._new(prepared)
        return made

    def _new(self, prepared: Prepared) -> Chosen:
        def admit(partitioning: Partitioning) -> None:
            chosen = known()
            if chosen is not None:
                chosen.admit(partitioning)

        made = Chosen(ModelPlans(self._session, prepared, {}, next(self._numbers), admit))
        known = ref(made)  # which has the plans
        return made
