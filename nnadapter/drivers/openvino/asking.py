"""What of a device has to do with ONNX models: verdicts of tables and engine, and segments compiled.

A program that is loaded from a file needs none of this, nor the package onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import onnx

from nnadapter.drivers.culprits import find_refused
from nnadapter.drivers.interface import Admission
from nnadapter.drivers.openvino.engine import brief, core, refuse_forked
from nnadapter.drivers.openvino.loading import copied_bytes, read
from nnadapter.drivers.openvino.mends import NOTES
from nnadapter.drivers.openvino.program import OpenvinoProgram
from nnadapter.drivers.openvino.signature import difference, signature_of
from nnadapter.drivers.openvino.verdicts import Whole, grouped_filters, judge, judge_dynamic, leaves_open
from nnadapter.drivers.openvino.written import is_read_as_written
from nnadapter.errors import CompilationError
from nnadapter.onnx.nodes import opsets_of
from nnadapter.onnx.parts import Parts, SizedCase
from nnadapter.onnx.references import bytes_of
from nnadapter.onnx.sizes import has_open_inputs
from partition.verdict import Reason, Unsupported, Verdict, all_of

_CONSTANT_BYTES = 1 << 20
"""The engine is asked with constants up to this size; larger ones are weights, which decide nothing."""
_MOST_NODES = 2000
"""Nodes of a segment, above which the engine's compile time grows with the square of their number."""
_MOST_KNOWN = 1 << 14
"""Answers of the engine that are kept."""
_BY_RANKS = frozenset(("CPU",))
"""Devices that choose what they run by types and ranks, and by which sizes are 1 or the same."""


class _Case(NamedTuple):
    """What decides the engine's answer about a node."""

    asked: str
    opsets: tuple[tuple[str, int], ...]
    sized: SizedCase


class Asker:
    """Asks the engine about nodes that the tables take, and compiles segments."""

    def __init__(self, device: str, properties: Mapping[str, Any], switched_off: Collection[str]) -> None:
        """Ask a device.

        Args:
            device: as the engine calls it.
            properties: of the engine.
            switched_off: op types that are refused.
        """
        self._device = device
        self._properties = properties
        self._switched_off = switched_off
        self._known: dict[_Case, Unsupported | None] = {}

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """See `Context.supported`: the tables first, then the engine's own query, once for nodes that are alike."""
        analysis = Whole.of(model, _CONSTANT_BYTES)
        parts = analysis.parts
        is_open = has_open_inputs(model)
        verdicts = [
            judge_dynamic(node, analysis)
            if is_open and leaves_open(node, analysis)
            else judge(node, analysis, self._switched_off)
            for node in model.graph.node
        ]
        supported_positions = [position for position, verdict in enumerate(verdicts) if verdict]
        for position, refusal in self._not_taken(supported_positions, model, parts).items():
            verdicts[position] = refusal
        return verdicts

    def admit(self, model: onnx.ModelProto) -> Admission:
        """See `Context.admit`: what was taken node by node; but not too much at once, and with open sizes not all."""
        if (count := len(model.graph.node)) > _MOST_NODES:
            detail = f"a segment has {count} nodes, and OpenVINO compiles up to {_MOST_NODES} in linear time"
            return Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, detail))
        if not has_open_inputs(model):
            return Admission()
        analysis = Whole.of(model, _CONSTANT_BYTES)
        verdict = all_of(judge_dynamic(node, analysis) for node in model.graph.node)
        if verdict:
            refused = self._not_taken(range(len(model.graph.node)), model, analysis.parts)
            verdict = refused[min(refused)] if refused else verdict
        return Admission(verdict=verdict)

    def compile(self, model: onnx.ModelProto, seal: Mapping[str, Any]) -> OpenvinoProgram:
        """See `Context.compile`.

        Args:
            model: the segment.
            seal: what the program must have been compiled with to run here.

        Raises:
            CompilationError: the engine does not take the segment; with the nodes to blame, where there are some.
            DeviceLostError: see `refuse_forked`.
        """
        refuse_forked(self._device)
        try:
            engine_model = read(model)
            return _program_of(self._compiled(engine_model), model, seal, _notes_of(engine_model))
        except Exception as error:
            parts = Parts(model, _CONSTANT_BYTES, grouped_filters(model))
            cases = _cases(range(len(model.graph.node)), model, parts, "compiled")
            raise CompilationError(
                f"OpenVINO does not compile the segment for {self._device}: {brief(error)}; "
                "its nodes can be kept from it by option switched_off",
                device=f"openvino:{self._device}",
                refused=self._refused(cases, parts, self._compile_part),
            ) from error

    def _not_taken(self, positions: Sequence[int], model: onnx.ModelProto, parts: Parts) -> dict[int, Unsupported]:
        """What the engine does not take of the nodes at some positions."""
        return self._refused(_cases(positions, model, parts, "queried"), parts, self._query, self._takes_at_once)

    def _compiled(self, engine_model: Any) -> Any:
        return core().compile_model(engine_model, self._device, dict(self._properties))

    def _refused(
        self,
        cases: Mapping[_Case, Sequence[int]],
        parts: Parts,
        attempt: Callable[[onnx.ModelProto], Unsupported | None],
        at_once: Callable[[Mapping[int, _Case], Parts], bool] | None = None,
    ) -> dict[int, Unsupported]:
        """Ask about the cases that were not asked about before, first whether all of them are taken at once."""
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        cached_verdicts = self._known  # another thread may begin anew meanwhile
        fresh = {positions[0]: case for case, positions in cases.items() if case not in cached_verdicts}
        refused = {} if at_once and at_once(fresh, parts) else find_refused(list(fresh), parts, attempt)
        cached_verdicts.update((case, refused.get(position)) for position, case in fresh.items())
        answers = ((cached_verdicts[case], positions) for case, positions in cases.items())
        return {position: refusal for refusal, positions in answers if refusal is not None for position in positions}

    def _takes_at_once(self, cases: Mapping[int, _Case], parts: Parts) -> bool:
        """Whether the engine takes cases, by position, as far as it says so where not all of them are queried.

        All are read, for what the engine makes of a node follows from all sizes. Of those that are roughly alike, one
        is queried, since most of the time goes by in that.
        """
        if self._device not in _BY_RANKS or not cases:
            return not cases
        first: dict[object, int] = {}
        for position, case in cases.items():
            first.setdefault(case.sized.rough, position)
        part = parts.part(list(cases))
        try:
            model = read(part)
            if difference(part, model):
                return False
            queried_model = model if len(first) == len(cases) else read(parts.part(list(first.values())))
            return not self._left(queried_model)
        except Exception:  # noqa: BLE001  which of them it is, single questions say
            return False

    def _query(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            model = read(part)
            unsupported_types = self._left(model)
        except Exception as error:  # noqa: BLE001  whatever the engine raises is why it does not take it
            return Unsupported(Reason.DEVICE_REFUSED, f"OpenVINO does not read it: {brief(error)}")
        if unsupported_types:
            return Unsupported(
                Reason.DEVICE_REFUSED, f"OpenVINO's {self._device} does not take {', '.join(unsupported_types)}"
            )
        wrong = difference(part, model)
        return Unsupported(Reason.DEVICE_REFUSED, wrong) if wrong else None

    def _left(self, model: Any) -> Sequence[str]:
        """The types of the operations of a model that the device does not take."""
        supported_ops = core().query_model(model, self._device, dict(self._properties))
        return sorted({op.get_type_name() for op in model.get_ops() if op.get_friendly_name() not in supported_ops})

    def _compile_part(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            self._compiled(read(part))
        except Exception as error:  # noqa: BLE001  whatever the engine raises is why it does not take it
            return Unsupported(Reason.COMPILE_FAILED, f"OpenVINO's {self._device} does not compile it: {brief(error)}")
        return None


def _notes_of(engine_model: Any) -> list[str]:
    has_notes = engine_model.has_rt_info(list(NOTES))
    return str(engine_model.get_rt_info(list(NOTES)).astype(str)).splitlines() if has_notes else []


def _program_of(
    compiled: Any, model: onnx.ModelProto, seal: Mapping[str, Any], notes: Sequence[str]
) -> OpenvinoProgram:
    """The program of a compiled ONNX model.

    Raises:
        ValueError: the engine made other outputs of it than ONNX says.
    """
    weight_bytes = sum(map(bytes_of, model.graph.initializer))
    return OpenvinoProgram(
        compiled, signature_of(compiled, model), seal, weight_bytes, copied_bytes(model),
        is_kept=is_read_as_written(model), notes=notes,
    )  # fmt: skip


def _cases(positions: Sequence[int], model: onnx.ModelProto, parts: Parts, query_kind: str) -> dict[_Case, list[int]]:
    """Positions of nodes by what decides the engine's answer."""
    opsets = tuple(sorted(opsets_of(model.opset_import).items()))
    return {_Case(query_kind, opsets, case): alike for case, alike in parts.sized_cases(positions).items()}
