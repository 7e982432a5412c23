"""Verdicts, admission and compilation of ONNX models. Loading a program needs neither this module nor `onnx`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from nnadapter.drivers.interface import Admission
from nnadapter.drivers.openvino import engine
from nnadapter.drivers.openvino.operators import name_set
from nnadapter.drivers.openvino.program import OpenvinoProgram
from nnadapter.drivers.openvino.verdicts import (
    ModelAnalysis,
    grouped_filters,
    involves_dynamic_shapes,
    judge,
    judge_dynamic,
)
from nnadapter.drivers.openvino.workarounds import NOTES, apply_workarounds
from nnadapter.drivers.refused_nodes import find_refused
from nnadapter.errors import CompilationError
from nnadapter.onnx.construction import copied, initializer_of, with_inputs_for
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import captured_names, has_open_inputs, opsets_of, value_of
from nnadapter.onnx.parts import Parts, SizedCase
from nnadapter.onnx.references import REFERRED_BYTES, array_of, bytes_of, inlined
from partition.graph import Reason, Unsupported, Value, Verdict, all_of

_OPS = name_set("ReduceL1 ReduceLogSum ReduceLogSumExp")
_READ_AS_INPUT, _INPUT_SINCE = 13, 18
_AXES = "axes"


def with_axes_as_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose reductions get their axes as an input; the same model if none needs it.

    In opsets 13 to 17, OpenVINO ignores the attribute and reduces all dimensions (last seen in 2026.4).
    """
    opset = opsets_of(model.opset_import).get("", _INPUT_SINCE)
    if not (_READ_AS_INPUT <= opset < _INPUT_SINCE and any(map(_states_axes, model.graph.node))):
        return model
    stated = copied(model)
    names = {tensor.name for tensor in model.graph.initializer} | {value.name for value in model.graph.input}
    names.update(name for node in model.graph.node for name in node.output)
    for node in filter(_states_axes, stated.graph.node):
        (attribute,) = (attr for attr in node.attribute if attr.name == _AXES)
        name = f"{node.output[0]}_{_AXES}"
        while name in names:
            name += "_"
        names.add(name)
        stated.graph.initializer.append(initializer_of(name, np.array(helper.get_attribute_value(attribute), np.int64)))
        node.attribute.remove(attribute)
        node.input.append(name)
    return stated


def _states_axes(node: onnx.NodeProto) -> bool:
    is_known = node.op_type in _OPS and not plain_domain(node.domain)
    return is_known and any(attribute.name == _AXES for attribute in node.attribute)


_SHARED_TYPES = frozenset(
    getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64")
)


def read(model: onnx.ModelProto) -> Any:
    """Convert an ONNX model to OpenVINO's model; large constants share the ONNX model's memory."""
    large = {tensor.name: tensor for tensor in model.graph.initializer if _is_shared(tensor)}
    light = with_inputs_for(model, large)
    engine_model = engine.core().read_model(inlined(with_axes_as_input(light)).SerializeToString())
    if large:
        _fill(engine_model, large)
    apply_workarounds(engine_model, {node.op_type for node in model.graph.node})
    return engine_model


def _is_shared(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _SHARED_TYPES and bytes_of(tensor) >= REFERRED_BYTES


def _fill(model: Any, tensors: Mapping[str, onnx.TensorProto]) -> None:
    for parameter in model.get_parameters():
        name = next(filter(tensors.get, parameter.output(0).get_names()), None)
        if name is not None:
            constant = engine.module().op.Constant(engine.shareable(array_of(tensors[name])), shared_memory=True)
            for reader in parameter.output(0).get_target_inputs():
                reader.replace_source_output(constant.output(0))
            model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()


def signature_of(compiled: Any, model: onnx.ModelProto) -> engine.Ports:
    """Return the signature of a compiled model; raise ValueError if it differs from the ONNX model's."""
    wrong = difference(model, compiled)
    if wrong:
        raise ValueError(wrong)
    return engine.Ports(_inputs_of(compiled, model), engine.outputs_of(compiled))


def _inputs_of(compiled: Any, model: onnx.ModelProto) -> tuple[int | None, ...]:
    """Return the engine's port number for every ONNX input; None for dropped inputs."""
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    ports = {name: number for number, port in enumerate(compiled.inputs) for name in port.get_names() if name in names}
    read = {name for node in model.graph.node for name in (*node.input, *captured_names(node))}
    lost = [name for name in names if name not in ports and name in read]
    renamed = [number for number in range(len(compiled.inputs)) if number not in ports.values()]
    if renamed and len(renamed) != len(lost):
        raise ValueError(f"OpenVINO renamed {len(renamed)} inputs, expected {', '.join(map(repr, lost))}")
    ports.update(zip(lost, renamed, strict=False))
    return tuple(ports.get(name) for name in names)


def difference(expected: onnx.ModelProto, engine_model: Any) -> str:
    """Describe how the engine's outputs differ from ONNX's; empty if they do not."""
    if len(engine_model.outputs) != len(expected.graph.output):
        return f"OpenVINO returns {len(engine_model.outputs)} outputs, expected {len(expected.graph.output)}"
    return next(filter(None, map(_mismatch, expected.graph.output, engine_model.outputs)), "")


def _mismatch(info: onnx.ValueInfoProto, port: Any) -> str:
    value = value_of(info)
    if _is_as_said(value, port):
        return ""
    if port.partial_shape.rank.is_dynamic or (value.static_shape is not None and port.partial_shape.is_dynamic):
        return f"OpenVINO does not know the shape of {value.name!r} before the run: {port.partial_shape}"
    output = engine.output_of(port)
    if value.shape is not None and len(value.shape) != len(output.shape):
        return f"OpenVINO returns {value.name!r} with {len(output.shape)} dimensions, expected {len(value.shape)}"
    if value.dtype not in (None, output.dtype):
        return f"OpenVINO returns {value.name!r} as {output.dtype}, expected {value.dtype}"
    if value.shape is not None and any(map(_is_other_size, output.shape, value.shape)):
        return f"OpenVINO returns {value.name!r} with shape {list(output.shape)}, expected {list(value.shape)}"
    return ""


def _is_other_size(engine_size: int | None, declared_size: int | str | None) -> bool:
    return engine_size is not None and isinstance(declared_size, int) and engine_size != declared_size


def _is_as_said(value: Value, port: Any) -> bool:
    shape = value.static_shape
    return (
        shape is not None
        and port.partial_shape.to_string() == f"[{','.join(map(str, shape))}]"
        and (value.dtype == engine.dtype_of(port))
    )


_RECURRENT = name_set("LSTM GRU RNN")
"""Ops that mix up the sequences of a batch in imported programs; last seen in OpenVINO 2026.4."""


def is_read_as_written(model: onnx.ModelProto) -> bool:
    """Check whether a program computes the same after export and import. Only such programs are serialized."""
    recurrent = [node for node in model.graph.node if node.op_type in _RECURRENT and not node.domain]
    if not recurrent:
        return True
    parts = Parts(model)
    return all(_is_of_one_sequence(parts, node.input[0]) for node in recurrent)


def _is_of_one_sequence(parts: Parts, name: str) -> bool:
    value = parts.value(name)
    shape = value.shape if value is not None else None
    return shape is not None and len(shape) == 3 and shape[1] == 1


_CONSTANT_BYTES = 1 << 20
"""Size up to which queries contain constants; the contents of larger constants decide nothing."""
_MOST_NODES = 2000
"""Number of nodes above which the engine's compile time grows quadratically."""
_MOST_KNOWN = 1 << 14
_BY_RANKS = frozenset(("CPU",))
"""Devices that choose kernels by types and ranks. Sizes matter only if they are 1 or equal to other sizes."""


class _Case(NamedTuple):
    query_kind: str
    opsets: tuple[tuple[str, int], ...]
    sized: SizedCase


class Asker:
    """Verdicts and compilation of segments for one device and its options."""

    def __init__(self, device: str, properties: Mapping[str, Any], switched_off: Collection[str]) -> None:
        self._device = device
        self._properties = properties
        self._switched_off = switched_off
        self._known: dict[_Case, Unsupported | None] = {}

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return verdicts from the tables. Accepted nodes are also queried, with one query for equivalent nodes."""
        analysis = ModelAnalysis.of(model, _CONSTANT_BYTES)
        parts = analysis.parts
        is_open = has_open_inputs(model)
        verdicts = [
            judge_dynamic(node, analysis)
            if is_open and involves_dynamic_shapes(node, analysis)
            else judge(node, analysis, self._switched_off)
            for node in model.graph.node
        ]
        supported_positions = [position for position, verdict in enumerate(verdicts) if verdict]
        for position, refusal in self._not_taken(supported_positions, model, parts).items():
            verdicts[position] = refusal
        return verdicts

    def admit(self, model: onnx.ModelProto) -> Admission:
        """Refuse segments with too many nodes, and segments with dynamic shapes if any node is refused."""
        if (count := len(model.graph.node)) > _MOST_NODES:
            detail = f"a segment has {count} nodes, but OpenVINO compiles only up to {_MOST_NODES} in linear time"
            return Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, detail))
        if not has_open_inputs(model):
            return Admission()
        analysis = ModelAnalysis.of(model, _CONSTANT_BYTES)
        verdict = all_of(judge_dynamic(node, analysis) for node in model.graph.node)
        if verdict:
            refused = self._not_taken(range(len(model.graph.node)), model, analysis.parts)
            verdict = refused[min(refused)] if refused else verdict
        return Admission(verdict=verdict)

    def compile(self, model: onnx.ModelProto, seal: Mapping[str, Any]) -> OpenvinoProgram:
        """Compile a segment; store the settings `seal` in the program.

        Raises:
            CompilationError: the engine refuses the segment. The error lists the refused nodes if they are found.
            DeviceLostError: see `refuse_forked`.
        """
        engine.refuse_forked(self._device)
        try:
            engine_model = read(model)
            return _program_of(self._compiled(engine_model), model, seal, _notes_of(engine_model))
        except Exception as error:
            parts = Parts(model, _CONSTANT_BYTES, grouped_filters(model))
            cases = _cases(range(len(model.graph.node)), model, parts, "compiled")
            raise CompilationError(
                f"OpenVINO does not compile the segment for {self._device}: {engine.brief(error)}; "
                "exclude its nodes by the option switched_off",
                device=f"openvino:{self._device}",
                refused=self._refused(cases, parts, self._compile_part),
            ) from error

    def _not_taken(self, positions: Sequence[int], model: onnx.ModelProto, parts: Parts) -> dict[int, Unsupported]:
        return self._refused(_cases(positions, model, parts, "queried"), parts, self._query, self._takes_at_once)

    def _compiled(self, engine_model: Any) -> Any:
        return engine.core().compile_model(engine_model, self._device, dict(self._properties))

    def _refused(
        self,
        cases: Mapping[_Case, Sequence[int]],
        parts: Parts,
        attempt: Callable[[onnx.ModelProto], Unsupported | None],
        at_once: Callable[[Mapping[int, _Case], Parts], bool] | None = None,
    ) -> dict[int, Unsupported]:
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        cached_verdicts = self._known  # another thread may replace the cache
        fresh = {positions[0]: case for case, positions in cases.items() if case not in cached_verdicts}
        refused = {} if at_once and at_once(fresh, parts) else find_refused(list(fresh), parts, attempt)
        cached_verdicts.update((case, refused.get(position)) for position, case in fresh.items())
        answers = ((cached_verdicts[case], positions) for case, positions in cases.items())
        return {position: refusal for refusal, positions in answers if refusal is not None for position in positions}

    def _takes_at_once(self, cases: Mapping[int, _Case], parts: Parts) -> bool:
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
            return not self._unsupported_types(queried_model)
        except Exception:  # noqa: BLE001  queries of single nodes find the cause
            return False

    def _query(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            model = read(part)
            unsupported_types = self._unsupported_types(model)
        except Exception as error:  # noqa: BLE001  a refusal
            return Unsupported(Reason.DEVICE_REFUSED, f"OpenVINO cannot read the subgraph: {engine.brief(error)}")
        if unsupported_types:
            return Unsupported(
                Reason.DEVICE_REFUSED, f"OpenVINO's {self._device} does not support {', '.join(unsupported_types)}"
            )
        wrong = difference(part, model)
        return Unsupported(Reason.DEVICE_REFUSED, wrong) if wrong else None

    def _unsupported_types(self, model: Any) -> Sequence[str]:
        supported_ops = engine.core().query_model(model, self._device, dict(self._properties))
        return sorted({op.get_type_name() for op in model.get_ops() if op.get_friendly_name() not in supported_ops})

    def _compile_part(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            self._compiled(read(part))
        except Exception as error:  # noqa: BLE001  a refusal
            return Unsupported(
                Reason.COMPILE_FAILED, f"OpenVINO's {self._device} cannot compile the subgraph: {engine.brief(error)}"
            )
        return None


def _notes_of(engine_model: Any) -> list[str]:
    has_notes = engine_model.has_rt_info(list(NOTES))
    return str(engine_model.get_rt_info(list(NOTES)).astype(str)).splitlines() if has_notes else []


def _program_of(
    compiled: Any, model: onnx.ModelProto, seal: Mapping[str, Any], notes: Sequence[str]
) -> OpenvinoProgram:
    weight_bytes = sum(map(bytes_of, model.graph.initializer))
    copied_bytes = sum(bytes_of(tensor) for tensor in model.graph.initializer if not _is_shared(tensor))
    return OpenvinoProgram(
        compiled, signature_of(compiled, model), seal, weight_bytes, copied_bytes,
        is_kept=is_read_as_written(model), notes=notes,
    )  # fmt: skip


def _cases(positions: Sequence[int], model: onnx.ModelProto, parts: Parts, query_kind: str) -> dict[_Case, list[int]]:
    opsets = tuple(sorted(opsets_of(model.opset_import).items()))
    return {_Case(query_kind, opsets, case): alike for case, alike in parts.sized_cases(positions).items()}
