"""Plans for models with `If` nodes that inputs decide: each selection of branches is planned as a separate model.

Thus a device without support for `If` may take nodes of a branch. A selection is planned when a run first makes it. The
original model serves selections that are contradictory, gain nothing, or exceed the limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from nnadapter.records import dataclass, field
from partition.graph import Value

MOST_CHOICES = 8
"""Maximum number of selections per session with plans of their own."""
MOST_AHEAD = 4
"""Maximum number of selections planned ahead of runs. If there are more, only the original model is planned ahead."""
_MOST_LEFT = 256
_MOST_VAIN = 4
"""Number of shape sets without gain after which a selection is abandoned."""


class NothingGainedError(NNAdapterError):
    """No accelerator runs a node of the selected branches. Internal to this package."""


def refuse_without_gain(partitioning: Partitioning) -> None:
    """Raise NothingGainedError if no accelerator runs a node of the selected If branches.

    If these branches contain only constants, one node outside of them on an accelerator suffices.
    """
    names = [name for decision in partitioning.model.prepared.branch_decisions for name in decision.nodes]
    inside = re.compile(f"(?:{'|'.join(map(re.escape, names))})_*/")
    accelerators, nodes = partitioning.setting.accelerators, partitioning.plan.graph.nodes
    on = {step.device for step in partitioning.plan.steps}
    with_branches = {
        step.device for step in partitioning.plan.steps if any(inside.match(nodes[index].name) for index in step.nodes)
    }
    if accelerators.isdisjoint(with_branches or on):
        raise NothingGainedError("no accelerator runs a node of the selected If branches")


@dataclass(eq=False)
class BranchSelection:
    """Selection of branches with the plans of its model."""

    plans: ModelPlans
    original_model_shapes: Cache[InputShapes, bool] = field(
        default_factory=lambda: Cache("shapes of choices", _MOST_LEFT)
    )
    has_gained: bool = False
    vain_count: int = 0

    @property
    def prepared(self) -> Prepared:
        return self.plans.planner.prepared

    @property
    def is_abandoned(self) -> bool:
        return not self.has_gained and self.vain_count >= _MOST_VAIN

    def serves(self, shapes: InputShapes) -> bool:
        return not self.is_abandoned and not (
            len(self.original_model_shapes) and self.original_model_shapes.get(shapes)
        )

    def runs_by(self, plans: ModelPlans) -> bool:
        return self.plans is plans or self.is_abandoned

    def check_gain(self, partitioning: Partitioning) -> None:
        if not self.has_gained:
            refuse_without_gain(partitioning)


class BranchSelections:
    """Selections of branches that runs of one session have made. Thread-safe."""

    def __init__(self, decision: DecidingConditions, own_plans: ModelPlans, session: SessionPlans) -> None:
        self._own, self._session, self._plans = BranchSelection(own_plans), session, session.plans
        self._made: dict[Choice, BranchSelection] = {}
        self._decisions: dict[Truths, DecidingConditions] = {}
        self._contradicted: list[Truths] = []
        self._forks, self._numbers = count(2), count(1)
        self.note = ""
        """Note for the report if inputs select among too many variants."""
        self._fork = self._fork_of(decision)

    def select(self, feed: Mapping[str, Any] | None) -> BranchSelection:
        """Return the selection that checked inputs make; without inputs, conditions are assumed true."""
        if feed is not None:
            return self._fork.select(feed)
        successor: Fork[BranchSelection] | BranchSelection = self._fork
        while isinstance(successor, Fork):
            successor = successor.successor((True,) * successor.count)
        return successor

    def take(
        self,
        use: object,
        shapes: InputShapes,
        feed: Mapping[str, Any] | None = None,
        selection: BranchSelection | None = None,
    ) -> LeasedPlan[Compiled]:
        selection = self.select(feed) if selection is None else selection
        leased = self._lease(selection, use, shapes, lambda: selection.plans.take(use, shapes, feed))
        return leased or self._own.plans.take(use, shapes, feed)

    def take_dynamic(self, use: object, shapes: InputShapes, selection: BranchSelection) -> LeasedPlan[Compiled] | None:
        leased = self._lease(selection, use, shapes, lambda: selection.plans.take_dynamic(use, shapes))
        is_left = selection is self._own or not selection.serves(shapes)
        return self._own.plans.take_dynamic(use, shapes) if leased is None and is_left else leased

    def of(self, choice: Choice) -> ModelPlans:
        """Return the plans of a selection, or of the original model if the selection has none."""
        return self._made.get(choice, self._own).plans

    @property
    def decisions(self) -> Mapping[Truths, DecidingConditions]:
        return dict(self._decisions)

    @property
    def original_model_shapes(self) -> OriginalModelShapes:
        shapes_by_truths: dict[Truths, frozenset[InputShapes] | None] = dict.fromkeys(list(self._contradicted))
        for choice, selection in list(self._made.items()):
            if selection.is_abandoned or len(selection.original_model_shapes):
                shapes_by_truths[decision_values(choice)] = (
                    None if selection.is_abandoned else frozenset(selection.original_model_shapes.keys())
                )
        return shapes_by_truths

    @property
    def model_plans(self) -> Sequence[ModelPlans]:
        return [entry.plans for entry in list(self._made.values())]

    @property
    def planned_ahead(self) -> Sequence[BranchSelection]:
        """Selections to plan ahead of runs: all if they are few, otherwise only the original model."""
        selections = dict[BranchSelection, None]()
        for selection in self._leaves(self._fork):
            selections[selection] = None
            if len(selections) > MOST_AHEAD:
                self.note = (
                    f"inputs select among more than {MOST_AHEAD} variants of the model: ahead of runs, the original "
                    "model is planned"
                )
                return [self._own]
        return list(selections)

    @property
    def text(self) -> str:
        texts = (
            (entry.prepared.branch_decisions, entry.plans.served_shapes_text) for entry in list(self._made.values())
        )
        return "; ".join(f"if {decisions_text(choice)}: {text}" for choice, text in texts if text)

    def _lease(
        self,
        selection: BranchSelection,
        use: object,
        shapes: InputShapes,
        take: Callable[[], LeasedPlan[Compiled] | None],
    ) -> LeasedPlan[Compiled] | None:
        """Return the plan from `take`; None if the model with all branches serves these shapes."""
        if selection is self._own or not selection.serves(shapes):
            return None
        try:
            leased = take()
        except NothingGainedError:
            selection.vain_count += 1
        except (CompilationError, InvalidModelError):
            pass
        else:
            selection.has_gained |= leased is not None
            return leased
        selection.original_model_shapes.put(shapes, True)
        self._plans.users.pop(use, None)
        self._plans.close_unused()
        return None

    def _leaves(self, fork: Fork[BranchSelection]) -> Iterator[BranchSelection]:
        for truths in islice(product((True, False), repeat=fork.count), MOST_AHEAD + 1):
            successor = fork.successor(truths)
            if isinstance(successor, Fork):
                yield from self._leaves(successor)
            else:
                yield successor

    def _fork_of(self, decision: DecidingConditions) -> Fork[BranchSelection]:
        self._decisions[decision_values(decision.prepared.branch_decisions)] = decision
        # if a condition cannot be computed, the original model runs and raises the same error
        weak: BranchSelections = proxy(self)  # weak: it owns the fork
        return Fork(decision.conditions, lambda truths: weak._next(decision, truths), lambda error: weak._own)

    def _next(self, decision: DecidingConditions, truths: Truths) -> Fork[BranchSelection] | BranchSelection:
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
        selection = self._made[prepared.branch_decisions] = self._make_selection(prepared)
        return selection

    def _make_selection(self, prepared: Prepared) -> BranchSelection:
        def check_gain(partitioning: Partitioning) -> None:
            selection = reference()
            if selection is not None:
                selection.check_gain(partitioning)

        selection = BranchSelection(ModelPlans(self._session, prepared, {}, next(self._numbers), check_gain))
        reference = ref(selection)  # weak: it owns the plans
        return selection


Notes = tuple[str, ...]


def partition_selected(
    prepared: Prepared,
    shapes: Callable[[], Shapes],
    values: Mapping[str, Any],
    plan: Callable[[Prepared], Partitioning],
) -> tuple[Partitioning, Notes]:
    """Return the partitioning for these inputs, which may select branches, and notes for the report.

    Conditions on missing inputs are assumed true. Raises InvalidInputError for unknown inputs or unfit contents.
    """
    inputs = {name: prepared.graph.value(name) for name in prepared.graph.inputs}
    feed = {name: array_for(name, value, inputs) for name, value in values.items()}
    decision = decision_of(prepared)
    if decision is None:
        return plan(prepared), ()
    selection, is_assumed = select_branches(prepared, shapes(), feed)
    if not selection.branch_decisions:
        return plan(prepared), ()
    words = decisions_text(selection.branch_decisions)
    try:
        partitioning = plan(selection)
        refuse_without_gain(partitioning)
    except (NothingGainedError, InvalidModelError, InvalidInputError):
        note = f"inputs select branches: if {words}, no device runs their nodes, and the original model runs"
        return plan(prepared), (note,)
    if not is_assumed:
        return partitioning, ()
    deciding = decision.conditions.inputs
    how = f"; --input {deciding[0]}=VALUE plans others" if deciding else ""
    return partitioning, (f"inputs select branches: this plan is for inputs with {words}{how}",)


def _arrays_without_memory(shapes: Shapes) -> dict[str, Array]:
    return {name: np.broadcast_to(np.zeros((), np.int8), shape) for name, shape in shapes.items()}


def select_branches(prepared: Prepared, shapes: Shapes, feed: Mapping[str, Array]) -> tuple[Prepared, bool]:
    """Return the model with only the branches that inputs select, and whether a condition was assumed.

    Conditions on missing inputs are assumed true. Raises InvalidInputError if a condition cannot be computed.
    """
    is_assumed = False
    sizes = _arrays_without_memory(shapes)
    while (decision := decision_of(prepared)) is not None:
        is_told = feed.keys() >= set(decision.conditions.inputs)
        is_assumed |= not is_told
        every = (True,) * len(decision.texts)
        try:
            prepared = decided(decision, _truths(decision.conditions, {**sizes, **feed}) if is_told else every)
        except InvalidModelError:
            break
    return prepared, is_assumed


def _truths(conditions: Conditions, feed: Mapping[str, Array]) -> Truths:
    def refuse(error: BaseException) -> Truths:
        raise InvalidInputError(f"branch conditions cannot be computed from these inputs: {error}") from error

    return Fork[Truths](conditions, lambda truths: truths, refuse).select(feed)


def array_for(name: str, value: Any, inputs: Mapping[str, Value]) -> Array:
    """Convert an input to an array of its dtype and shape; a single number fills all elements.

    Raises InvalidInputError for unknown inputs and unfit contents.
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
    """Return the first plan of a compiled file that serves these inputs.

    Raises InvalidInputError for unfit contents, missing inputs, or if no plan serves them.
    """
    plans, declared = file.message.plans, file.signature.by_name
    feed: dict[str, Array] = {name: array_for(name, value, declared) for name, value in values.items()}
    fork = fork_of(file) if feed else None
    if fork is None:
        return plans[0]
    lost = [name for row in file.message.forks for name in row.inputs if name not in feed]
    if lost:
        raise InvalidInputError(f"input {lost[0]!r} also selects If branches; pass it as well", name=lost[0])
    truths = fork.select({**_arrays_without_memory(file.shapes(plans[0])), **feed})
    for candidate in (truths, ()):
        plan = next((plan for plan in plans if tuple(plan.truths) == candidate), None)
        if plan is not None:
            return plan
    raise InvalidInputError(f"the compiled model has no plan if {choice_in_words(file, truths)}")
