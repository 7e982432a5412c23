"""The first half of the way: prepared model -> verdicts, which `judged` places and cuts.

A model has forms: function ops that every device refuses are written down in their bodies, where the devices take all
of these. Which form it is follows from the verdicts at the shapes that are asked for, not from shapes before; what is
remembered of those only saves work: forms, and refusals that no shape changes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from nnadapter.offering.expansions import Trial, bodies_to_try, expanded, refused_for_good, trial_of
from nnadapter.onnx.functions import Bodies
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from nnadapter.planning.forms import Form
from nnadapter.planning.judged import Judged
from nnadapter.planning.placing import Placer
from nnadapter.process.collecting import paused_collection
from partition.verdict import Unsupported

_DEEPEST = 4
"""Functions whose bodies hold functions that no device takes whole, at most."""
_MOST_FORMS = 4
"""Forms that are kept beside the model's own; the one used longest ago goes."""

_Key = tuple[Form, frozenset[str]]
"""A form, and its nodes that are expanded."""


@dataclass(frozen=True, eq=False)
class _Expanded:
    """A form with more nodes expanded."""

    form: Form
    wholes: tuple[str, ...]
    """Per node of its model, the node of the form before that it is, or in whose place it stands."""


@dataclass(eq=False)
class Analyzer:
    """Analyzes one prepared model for one session's devices."""

    prepared: Prepared
    placer: Placer
    refused_by_cpu: dict[str, Unsupported] = field(default_factory=dict)
    """See `Judged`."""
    _own: Form = field(init=False)
    _forms: OrderedDict[_Key, _Expanded] = field(default_factory=OrderedDict)
    _hopeless: set[str] = field(default_factory=set)
    """Nodes whose bodies are not taken at any shapes."""
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Take the model as it is for the first form."""
        self._own = Form(self.prepared, self.placer, self.refused_by_cpu)

    def clear(self) -> None:
        """Forget what other shapes would share."""
        self._own.clear()
        self._forms.clear()

    @paused_collection()
    def judge(self, shapes: Shapes) -> Judged:
        """Specialize, convert, and ask every device.

        Atoms that a device refuses are offered to it node by node, function ops that all refuse by their bodies.
        """
        with self._lock:  # what one set of shapes teaches saves work for the next
            return self._judged(shapes).ruled()

    def _judged(self, shapes: Shapes) -> Judged:
        form, judged = self._own, None
        tried: set[str] = set()
        for _ in range(_DEEPEST):
            step = self._step_as_before(form, shapes)
            if step is None:
                judged = judged or form.judge(shapes)
                known = tried | self._hopeless
                bodies = bodies_to_try(form.prepared, judged.specialized, judged.answers, known)
                tried.update(bodies)
                step = self._step(form, judged, bodies) if bodies else None
            if step is None:
                break
            form, judged = step
        return judged or form.judge(shapes)

    def _step_as_before(self, form: Form, shapes: Shapes) -> tuple[Form, Judged] | None:
        """The next form, `form` itself not looked at, where that would be refused and the next is taken as before."""
        tried = self._tried(form, form.sure, shapes) if form.sure else None
        if tried is None or len(tried[2].worth) < len(form.sure):
            return None
        return tried[:2]

    def _step(self, form: Form, before: Judged, bodies: Bodies) -> tuple[Form, Judged] | None:
        """The next form and what is said of it, with those of `bodies` expanded for which that is worth it."""
        form.sure = {}
        tried = self._tried(form, bodies, before.shapes)
        if tried is None:
            self._hopeless.update(bodies)
            return None
        found, judged, trial = tried
        self._hopeless.update(trial.hopeless)
        if len(trial.worth) < len(bodies):
            if trial.hopeless:
                self._forms.pop((form, frozenset(bodies)), None)
            smaller = self._expanded(form, trial.worth) if trial.worth else None
            if smaller is None:
                return None
            found, judged = smaller.form, smaller.form.judge(before.shapes)
        sure = refused_for_good(before.graph, before.answers)
        form.sure = {name: body for name, body in trial.worth.items() if name in sure}
        return found, judged

    def _tried(self, form: Form, bodies: Bodies, shapes: Shapes) -> tuple[Form, Judged, Trial] | None:
        """A form with all of `bodies` expanded, what is said of it, and for which of them that is worth it."""
        made = self._expanded(form, bodies)
        if made is None:
            return None
        judged = made.form.judge(shapes)
        wholes = [made.wholes[position] for position in judged.specialized.positions]
        return made.form, judged, trial_of(bodies, wholes, judged.graph, judged.answers)

    def _expanded(self, form: Form, bodies: Bodies) -> _Expanded | None:
        """The form with these nodes expanded, made once; None where none of them can be."""
        key = form, frozenset(bodies)
        found = self._forms.get(key)
        if found is None:
            made = expanded(form.prepared, bodies)
            if made is None:
                return None
            prepared, wholes = made
            found = self._forms[key] = _Expanded(Form(prepared, self.placer, self.refused_by_cpu), wholes)
            while len(self._forms) > _MOST_FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return found
