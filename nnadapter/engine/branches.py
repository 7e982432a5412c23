"""Plans for models whose inputs select branches of `If`, and the selected model for reports.

Plans by what inputs choose: a model for each choice of branches, with the branches in place of their `If`.

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

import numpy as np

from nnadapter.engine.branch_conditions import Fork, choice_in_words, fork_of
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.model_plans import ModelPlans, SessionPlans
from nnadapter.engine.plan_source import InputShapes, LeasedPlan, OriginalModelShapes
from nnadapter.errors import FAILURES, CompilationError, InvalidInputError, InvalidModelError, NNAdapterError
from nnadapter.files.messages import Message
from nnadapter.ir.operand import Array
from nnadapter.onnx.preparation.branch_decisions import (
    MOST_FORKS,
    Choice,
    Conditions,
    Truths,
    decision_values,
    decisions_text,
)
from nnadapter.onnx.preparation.deciding_conditions import DecidingConditions, decided, decision_of
from nnadapter.onnx.preparation.default_sizes import check_shape
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes, filled
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import Cache
from partition.graph import Value

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
    names = [name for taken in partitioning.model.prepared.branch_decisions for name in taken.nodes]
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
    original_model_shapes: Cache[InputShapes, bool] = field(
        default_factory=lambda: Cache("shapes of choices", _MOST_LEFT)
    )
    """Shapes that the model as it was given serves."""
    has_gained: bool = False
    in_vain: int = 0

    @property
    def prepared(self) -> Prepared:
        """The model, which says what was chosen."""
        return self.plans.planner.prepared

    @property
    def is_abandoned(self) -> bool:
        """Whether it is not tried any more."""
        return not self.has_gained and self.in_vain >= _MOST_IN_VAIN

    def serves(self, shapes: InputShapes) -> bool:
        """Whether its plans are asked for at these shapes."""
        return not self.is_abandoned and not (
            len(self.original_model_shapes) and self.original_model_shapes.get(shapes)
        )

    def keeps_to(self, plans: ModelPlans) -> bool:
        """Whether these plans serve it at other shapes, too."""
        return self.plans is plans or self.is_abandoned

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
    ) -> LeasedPlan[Compiled]:
        """See `ModelPlans.take`: the plan of what a feed chooses, or of a choice."""
        chosen = self.chosen(feed) if chosen is None else chosen
        taken = self._taken(chosen, use, shapes, lambda: chosen.plans.take(use, shapes, feed))
        return taken or self._own.plans.take(use, shapes, feed)

    def take_open(self, use: object, shapes: InputShapes, chosen: Chosen) -> LeasedPlan[Compiled] | None:
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
    def original_model_shapes(self) -> OriginalModelShapes:
        """The choices that the model as it was given serves, since they gain nothing or contradict themselves."""
        left: dict[Truths, frozenset[InputShapes] | None] = dict.fromkeys(list(self._contradicted))
        for choice, chosen in list(self._made.items()):
            if chosen.is_abandoned or len(chosen.original_model_shapes):
                left[decision_values(choice)] = (
                    None if chosen.is_abandoned else frozenset(chosen.original_model_shapes.keys())
                )
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
        texts = ((entry.prepared.branch_decisions, entry.plans.sizes_text) for entry in list(self._made.values()))
        return "; ".join(f"where {decisions_text(choice)}: {text}" for choice, text in texts if text)

    def _taken(
        self, chosen: Chosen, use: object, shapes: InputShapes, take: Callable[[], LeasedPlan[Compiled] | None]
    ) -> LeasedPlan[Compiled] | None:
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
        chosen.original_model_shapes.put(shapes, True)
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
        self._decisions[decision_values(decision.prepared.branch_decisions)] = decision
        # Where conditions cannot be told, whoever runs the model as it was given meets the same, and says so.
        own: Choices = proxy(self)  # which has the fork
        return Fork(decision.conditions, lambda truths: own._behind(decision, truths), lambda error: own._own)

    def _behind(self, decision: DecidingConditions, truths: Truths) -> Fork[Chosen] | Chosen:
        if len(self._made) >= MOST_CHOICES or next(self._forks) > MOST_FORKS:
            return self._own
        try:
            prepared = decided(decision, truths)
        except InvalidModelError:
            self._contradicted.append((*decision_values(decision.prepared.branch_decisions), *truths))
            return self._own
        further = decision_of(prepared)
        if further is not None:
            return self._fork_of(further)
        made = self._made[prepared.branch_decisions] = self._new(prepared)
        return made

    def _new(self, prepared: Prepared) -> Chosen:
        def admit(partitioning: Partitioning) -> None:
            chosen = known()
            if chosen is not None:
                chosen.admit(partitioning)

        made = Chosen(ModelPlans(self._session, prepared, {}, next(self._numbers), admit))
        known = ref(made)  # which has the plans
        return made


Notes = tuple[str, ...]


def of_choice(
    prepared: Prepared,
    shapes: Callable[[], Shapes],
    values: Mapping[str, Any],
    plan: Callable[[Prepared], Partitioning],
) -> tuple[Partitioning, Notes]:
    """Return the plan of what inputs choose of a model, as sessions have it, and what is to be said of that.

    Args:
        prepared: the model as it was given.
        shapes: gives those of all inputs.
        values: contents of inputs; where these do not say, a condition is taken to hold.
        plan: plans a model.

    Raises:
        InvalidInputError: there is no such input, or its contents do not fit it.
    """
    inputs = {name: prepared.graph.value(name) for name in prepared.graph.inputs}
    feed = {name: array_for(name, value, inputs) for name, value in values.items()}
    decision = decision_of(prepared)
    if decision is None:
        return plan(prepared), ()
    chosen, is_assumed = chosen_by(prepared, shapes(), feed)
    if not chosen.branch_decisions:
        return plan(prepared), ()
    words = decisions_text(chosen.branch_decisions)
    try:
        partitioning = plan(chosen)
        refuse_without_gain(partitioning)
    except (NothingGainedError, InvalidModelError, InvalidInputError):
        note = (
            f"inputs choose branches: where {words}, devices have nothing of them, and the model runs as it was given"
        )
        return plan(prepared), (note,)
    if not is_assumed:
        return partitioning, ()
    deciding = decision.conditions.inputs
    how = f"; --input {deciding[0]}=VALUE tells what is planned for others" if deciding else ""
    return partitioning, (f"inputs choose branches: this is for those where {words}{how}",)


def measured(shapes: Shapes) -> dict[str, Array]:
    """Return arrays of these shapes, which hold nothing."""
    return {name: np.broadcast_to(np.zeros((), np.int8), shape) for name, shape in shapes.items()}


def chosen_by(prepared: Prepared, shapes: Shapes, feed: Mapping[str, Array]) -> tuple[Prepared, bool]:
    """Return the model with the branches that a feed chooses, and whether one was taken that it does not tell.

    Args:
        prepared: the model as it was given.
        shapes: of all inputs.
        feed: contents of inputs that choose; where they are not there, conditions are taken to hold.

    Raises:
        InvalidInputError: a condition cannot be computed of these.
    """
    is_assumed = False
    sizes = measured(shapes)
    while (decision := decision_of(prepared)) is not None:
        is_told = feed.keys() >= set(decision.conditions.inputs)
        is_assumed |= not is_told
        every = (True,) * len(decision.texts)
        try:
            prepared = decided(decision, _truths(decision.conditions, {**sizes, **feed}) if is_told else every)
        except InvalidModelError:
            break  # as sessions do, which run the model as it was given
    return prepared, is_assumed


def _truths(conditions: Conditions, feed: Mapping[str, Array]) -> Truths:
    def refuse(error: BaseException) -> Truths:
        raise InvalidInputError(f"what inputs choose cannot be told by these: {error}") from error

    return Fork[Truths](conditions, lambda truths: truths, refuse).chosen(feed)


def array_for(name: str, value: Any, inputs: Mapping[str, Value]) -> Array:
    """Return what an input is given as an array of its own type and shape; one number stands for all elements.

    Raises:
        InvalidInputError: there is no such input, or it does not fit.
    """
    if name not in inputs:
        raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(inputs)}", name=name)
    declared = inputs[name]
    if isinstance(value, (bool, int, float)):
        return filled(declared, value, declared.static_shape)
    array = _cast(np.asarray(value), declared)
    check_shape(name, array.shape, {name: declared})
    return array


def _cast(array: Array, declared: Value) -> Array:
    """An array in the data type of an input, which has all that is in it."""
    if declared.dtype is None or array.dtype == np.dtype(declared.dtype):
        return array
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(np.dtype(declared.dtype))
        fits = np.can_cast(array.dtype, cast.dtype, "same_kind") and bool((cast == array).all())
    except FAILURES:
        fits = False
    if not fits:
        raise InvalidInputError(
            f"input {declared.name!r} takes {declared.dtype}, got {array.dtype}", name=declared.name
        )
    return cast


def plan_of_file(file: CompiledFile, values: Mapping[str, Any]) -> Message:
    """Return the first plan of a compiled file that serves what inputs choose; without values, the first one.

    Raises:
        InvalidInputError: contents of inputs do not fit, those that choose are not all there, or the file has no plan
            for what they choose.
    """
    plans, declared = file.message.plans, file.signature.by_name
    feed: dict[str, Array] = {name: array_for(name, value, declared) for name, value in values.items()}
    fork = fork_of(file) if feed else None
    if fork is None:
        return plans[0]
    lost = [name for row in file.message.forks for name in row.inputs if name not in feed]
    if lost:
        raise InvalidInputError(f"input {lost[0]!r} chooses as well; give it, too", name=lost[0])
    truths = fork.chosen({**measured(file.shapes(plans[0])), **feed})
    for wanted in (truths, ()):  # as runs do
        plan = next((plan for plan in plans if tuple(plan.truths) == wanted), None)
        if plan is not None:
            return plan
    raise InvalidInputError(f"the compiled model has no plan where {choice_in_words(file, truths)}")
