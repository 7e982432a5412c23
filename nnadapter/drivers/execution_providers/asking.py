"""What has to do with ONNX models: verdicts by the provider's graph assignment, and programs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from hashlib import sha256

import onnx

from nnadapter.drivers.culprits import find_culprits
from nnadapter.drivers.execution_providers.assignment import Assignment, marked, read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.crashing import crashing
from nnadapter.drivers.execution_providers.probing import computes_half
from nnadapter.drivers.execution_providers.program import EpProgram
from nnadapter.drivers.execution_providers.remainder import without
from nnadapter.drivers.execution_providers.wrong_results import computed_otherwise, in_half
from nnadapter.drivers.interface import Admission, Program
from nnadapter.drivers.onnxruntime.driver import CpuContext
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.drivers.onnxruntime.optimizers import wrong_optimizers
from nnadapter.drivers.onnxruntime.profiling import SessionProfile, profile_of
from nnadapter.drivers.onnxruntime.weights import Loadable, loadable_of
from nnadapter.errors import CompilationError
from nnadapter.onnx.building import with_inputs_for
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.references import is_reference
from nnadapter.onnx.sizes import has_open_inputs, size_names
from nnadapter.process.forking import new_lock
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.traces.trace import Trace
from partition.verdict import Reason, Unsupported, Verdict

_UNCHANGED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
"""Verdicts are asked for the graph as it is, so that every node is found again."""
_REMEMBERED = 64
"""Answers that a context keeps: a graph is asked for again where atoms are offered node by node."""


class Asker:
    """Asks a provider with its options, and compiles for it."""

    def __init__(self, backing: Backing, trace: Trace, lane: str) -> None:
        self._backing = backing
        self._trace, self._lane = trace, lane
        self._lock = new_lock()
        self._answers: dict[bytes, Sequence[Verdict]] = {}

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """See `Context.supported`: what the provider is assigned of the graph.

        ONNX Runtime says that of a session only, so the provider compiles. A failed compilation loses a session as a
        whole; the nodes that fail by themselves are found then, and the others are asked for without them.
        """
        # Large weights decide nothing, and are not looked at.
        model = with_inputs_for(model, {tensor.name for tensor in filter(is_reference, model.graph.initializer)})
        key = sha256(model.SerializeToString()).digest()
        with self._lock:
            cached_answer = self._answers.get(key)
        if cached_answer is not None:
            return cached_answer
        answer = self._judged(model)
        with self._lock:
            if len(self._answers) >= _REMEMBERED:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer
        return answer

    def admit(self, model: onnx.ModelProto) -> Admission:
        """See `Context.admit`: with open sizes ONNX Runtime is asked once more, as it may assign otherwise then."""
        if not has_open_inputs(model):
            return Admission()
        try:
            session = self._open(loadable_of(marked(model), by_address=True), without=wrong_optimizers(model))
        except Exception as error:  # noqa: BLE001  whatever it raises is why it does not compile
            return Admission(verdict=self._refusal(error))
        assignment = self._assignment(session, model)
        if not assignment.left and not assignment.made:
            return Admission()
        refusal = Unsupported(Reason.DEVICE_REFUSED, f"{self._backing.provider} {_left(assignment)}")
        return Admission(verdict=refusal)

    def compile(self, model: onnx.ModelProto) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: the provider fails, or leaves nodes to ONNX Runtime's CPU.
        """
        loaded = loadable_of(marked(model), by_address=True)
        try:
            profile = profile_of(self._trace, self._lane, len(model.graph.node))
            session = self._open(loaded, profile=profile, without=wrong_optimizers(model))
        except Exception as error:
            raise self._failed(brief(error), self._culprits(model)) from error
        assignment = self._assignment(session, model)
        verdicts = {position: self._verdict(assignment, position) for position in assignment.left}
        if assignment.left or assignment.made:
            refused = {at: verdict for at, verdict in verdicts.items() if isinstance(verdict, Unsupported)}
            raise self._failed(f"it {_left(assignment)}", refused)
        return EpProgram(session, self._backing, loaded, profile)

    def close(self) -> None:
        """Forget the answers."""
        with self._lock:
            self._answers.clear()

    def _judged(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        count = len(model.graph.node)
        provider = self._backing.provider
        half = in_half(model, provider)
        kept_from_it = {} if not half or self._computes_half else half
        kept_from_it |= {**computed_otherwise(model, provider), **crashing(model, provider), **_not_known(model)}
        if len(kept_from_it) == count:
            return [kept_from_it[position] for position in range(count)]
        if kept_from_it:
            return self._judged_without(model, kept_from_it)
        try:
            assignment = self._assigned(marked(model))
        except Exception as error:  # noqa: BLE001  whatever it raises is why it does not compile
            refused = self._culprits(model)
            if not refused:
                return [self._refusal(error)] * count
            return self._judged_without(model, refused)
        return [self._verdict(assignment, position) for position in range(count)]

    def _judged_without(self, model: onnx.ModelProto, refused: Mapping[int, Unsupported]) -> Sequence[Verdict]:
        count = len(model.graph.node)
        refused = {**_behind(model, refused), **refused}
        if len(refused) == count:
            return [refused[position] for position in range(count)]
        try:
            assignment = self._assigned(without(marked(model), refused))
        except Exception as error:  # noqa: BLE001  whatever it raises is why it does not compile
            return [refused.get(position, self._refusal(error)) for position in range(count)]
        return [refused.get(position, self._verdict(assignment, position)) for position in range(count)]

    @cached_property
    def _computes_half(self) -> bool:
        return computes_half(self._backing)

    def _assigned(self, model: onnx.ModelProto) -> Assignment:
        session = self._open(loadable_of(model, by_address=True), _UNCHANGED)
        return read_assignment(session, self._backing.provider)

    def _open(
        self,
        model: Loadable,
        level: onnxruntime.GraphOptimizationLevel | None = None,
        profile: SessionProfile | None = None,
        without: Sequence[str] = (),
    ) -> onnxruntime.InferenceSession:
        return self._backing.open(model.contents, level, profile, without, model.weights)

    def _assignment(self, session: onnxruntime.InferenceSession, model: onnx.ModelProto) -> Assignment:
        """Who runs the nodes of a segment; with open sizes, what is made of sizes alone may be left to the CPU."""
        assignment = read_assignment(session, self._backing.provider)
        return assignment.without(of_sizes(model)) if has_open_inputs(model) else assignment

    def _verdict(self, assignment: Assignment, position: int) -> Verdict:
        return assignment.verdict(position, self._backing.provider)

    def _culprits(self, model: onnx.ModelProto) -> dict[int, Unsupported]:
        return find_culprits(model, self._attempt)

    def _attempt(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            self._open(loadable_of(part, by_address=True), _UNCHANGED)
        except Exception as error:  # noqa: BLE001  whatever it raises is why it does not compile
            return self._refusal(error)
        return None

    def _refusal(self, error: Exception) -> Unsupported:
        return Unsupported(Reason.DEVICE_REFUSED, f"{self._backing.provider} does not compile it: {brief(error)}")

    def _failed(self, reason: str, refused: Mapping[int, Unsupported]) -> CompilationError:
        return CompilationError(
            f"{self._backing.provider} does not compile the segment: {reason}; "
            "check the provider's options, or keep these nodes from it by a rule",
            device=self._backing.provider,
            refused=refused,
        )


def _not_known(model: onnx.ModelProto) -> dict[int, Unsupported]:
    """Nodes that ONNX Runtime itself has not, or not in this version: it loads no model that has one."""
    verdicts = enumerate(CpuContext().supported(model))
    return {position: verdict for position, verdict in verdicts if isinstance(verdict, Unsupported)}


def _behind(model: onnx.ModelProto, refused: Container[int]) -> dict[int, Unsupported]:
    """Nodes that read what refused ones make, if its type is not known: providers crash on inputs without a type."""
    types, unknown = infer(model), dict[str, str]()
    refusals: dict[int, Unsupported] = {}
    for position, node in enumerate(model.graph.node):
        read = next((name for name in (*node.input, *captured_names(node)) if name in unknown), None)
        if position in refused or read is not None:
            origin = node.op_type if read is None else unknown[read]
            unknown.update((name, origin) for name in node.output if name and name not in types)
        if read is not None and position not in refused:
            detail = f"{read!r} is of no known type: it hangs on a {unknown[read]}, which is refused"
            refusals[position] = Unsupported(Reason.UNSUPPORTED_TYPE, detail)
    return refusals


def of_sizes(model: onnx.ModelProto) -> frozenset[int]:
    """Positions of the nodes that compute sizes: ONNX Runtime itself runs those on the CPU, whoever runs the rest."""
    names = size_names(model)
    return frozenset(at for at, node in enumerate(model.graph.node) if names.issuperset(filter(None, node.output)))


def _left(assignment: Assignment) -> str:
    return f"leaves {len(assignment.left) + len(assignment.made)} nodes to ONNX Runtime's CPU"
