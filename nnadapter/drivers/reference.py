"""Device `reference`: onnx's reference evaluator, slow, the last resort for nodes that ONNX Runtime does not support.

Adaptations: the empty domain in place of `ai.onnx`, inferred types for expanding functions, corrected
operators (`reference_operators`), ONNX Runtime's result types, read-only inputs, and translated errors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceRole,
    DeviceType,
    ModelForm,
    OptionValues,
    Profile,
    Threading,
)
from nnadapter.drivers.interface import Context, Device, Driver, Execution, Program
from nnadapter.errors import CompilationError, DeviceNotFoundError, ExecutionError
from nnadapter.ir.operand import Array
from nnadapter.onnx.graphs import BROADCASTING_OPSET, holds_graph, opsets_of, with_nested
from nnadapter.onnx.references import bytes_of
from nnadapter.onnx.schemas import since_version
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict

if TYPE_CHECKING:
    import onnx

_PROFILE = Profile(
    peak_flops=5e8,
    bandwidth=5e8,
    launch_seconds=0.0,
    transfer_seconds=0.0,
    transfer_bandwidth=8e9,
    operation_seconds=1e-4,
    host_memory=True,
)
_CAPABILITY = Capability(
    form=ModelForm.ONNX,
    threading=Threading.EXCLUSIVE,
    role=DeviceRole.LAST_RESORT,
    checks_indices=True,
    profile=_PROFILE,
)
_WITHOUT_BROADCAST = frozenset({"Pow", "PRelu"})
"""Operators that raise TypeError for the attribute `broadcast`."""
_OWN_DOMAIN = "ai.onnx"


class ReferenceExecution(Execution):
    """Execution with an evaluator of its own, because operators may keep state during a run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._inputs = tuple(value.name for value in model.graph.input)
        self._evaluator = _evaluator(model)

    def compute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Evaluate the model. Sequences are lists; an empty optional is None."""
        feeds = {name: _read_only(input_value) for name, input_value in zip(self._inputs, inputs, strict=True)}
        try:
            # ONNX defines division by zero and overflow
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, feeds)
        except Exception as error:
            raise ExecutionError(
                f"onnx's reference evaluator failed: {type(error).__name__}: {_brief(error)}; check the inputs",
                device="reference",
            ) from error
        return [_result(value) for value in results]


class ReferenceProgram(Program):
    """Model ready for evaluation."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    @property
    def memory_bytes(self) -> int:
        return 2 * sum(map(bytes_of, self._model.graph.initializer))

    def create_execution(self) -> Execution:
        return ReferenceExecution(self._model)


class ReferenceContext(Context):
    """Context of the reference evaluator."""

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        normalized_model = _normalized(model)
        functions = {(function.domain, function.name) for function in normalized_model.functions}
        types = {value.name: value for value in (*normalized_model.graph.input, *normalized_model.graph.value_info)}
        return [
            _node_verdict(
                _single_node_model(normalized_model, node, types, holds_calls=(node.domain, node.op_type) in functions),
                functions,
            )
            for node in normalized_model.graph.node
        ]

    def compile(self, model: onnx.ModelProto) -> Program:
        normalized_model = _with_types(_normalized(model))
        verdict = _verdict(normalized_model)
        if isinstance(verdict, Unsupported):
            raise CompilationError(f"onnx's reference evaluator does not support the segment: {verdict.detail}")
        return ReferenceProgram(normalized_model)


class ReferenceDevice(Device):
    """Evaluator on the host."""

    capability = _CAPABILITY

    def create_context(self, options: OptionValues) -> ReferenceContext:
        return ReferenceContext()


class ReferenceDriver(Driver):
    """Driver of the device `reference`."""

    def open(self, device_id: str) -> ReferenceDevice:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(
                f"there is one reference device, reference:0, got reference:{device_id}; choose 'reference'"
            )
        return ReferenceDevice()

    def devices(self) -> Sequence[DeviceInfo]:
        import onnx

        return (
            DeviceInfo(
                name="reference",
                vendor="ONNX",
                type=DeviceType.CPU,
                sub_type="reference evaluator",
                version=onnx.__version__,
            ),
        )


def _evaluator(model: onnx.ModelProto) -> Any:
    from onnx.reference import ReferenceEvaluator

    from nnadapter.drivers.reference_operators import OPERATORS

    return ReferenceEvaluator(model, new_ops=OPERATORS)


def _verdict(model: onnx.ModelProto) -> Verdict:
    try:
        _evaluator(model)
    except Exception as error:  # noqa: BLE001  arbitrary errors
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"onnx's reference evaluator failed: {_brief(error)}")
    return SUPPORTED


def _node_verdict(node_model: onnx.ModelProto, functions: Container[tuple[str, str]]) -> Verdict:
    (node,) = node_model.graph.node
    if (node.domain, node.op_type) in functions:
        return _verdict(node_model)
    opset = opsets_of(node_model.opset_import).get(node.domain, 1)
    if since_version(node.domain, node.op_type, opset) is None:
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"opset {opset} has no {node.op_type!r}")
    if not node.domain and opset < BROADCASTING_OPSET and _is_read_as_newer(node_model):
        return Unsupported(
            Reason.UNSUPPORTED_ATTRIBUTE, f"onnx's reference evaluator does not compute {node.op_type} of opset {opset}"
        )
    return _verdict(node_model)


def _is_read_as_newer(node_model: onnx.ModelProto) -> bool:
    """Return whether the evaluator would misread the broadcasting or an attribute of a node from an old opset."""
    (node,) = node_model.graph.node
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Cast":
        return "to" in attributes and bool(attributes["to"].s)
    if node.op_type == "Gemm" or "broadcast" not in attributes or not attributes["broadcast"].i:
        return False
    if node.op_type in _WITHOUT_BROADCAST:
        return True
    if "axis" not in attributes:
        return False
    # numpy aligns trailing dimensions
    types = {value.name: value.type.tensor_type for value in node_model.graph.input}
    first, second = (types[name] for name in node.input)
    are_known = first.HasField("shape") and second.HasField("shape")
    return not are_known or attributes["axis"].i + len(second.shape.dim) != len(first.shape.dim)


def _single_node_model(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Mapping[str, onnx.ValueInfoProto], *, holds_calls: bool
) -> onnx.ModelProto:
    from nnadapter.onnx.construction import model_of, untyped

    inputs = (types.get(name) or untyped([name])[0] for name in dict.fromkeys(filter(None, node.input)))
    functions = model.functions if holds_calls or holds_graph(node) else ()
    return model_of(model, [node], inputs, untyped(node.output), functions=functions)


def _normalized(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in (*copy.opset_import, *(opset for function in copy.functions for opset in function.opset_import)):
        entry.domain = "" if entry.domain == _OWN_DOMAIN else entry.domain
    for node in with_nested((*copy.graph.node, *(node for function in copy.functions for node in function.node))):
        node.domain = "" if node.domain == _OWN_DOMAIN else node.domain
    return copy


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    from nnadapter.onnx.propagation import FAILURES, infer

    try:
        types = infer(model)
    except FAILURES:
        return model  # types are optional for the evaluator
    stated = {value.name for value in (*model.graph.input, *model.graph.output)}
    del model.graph.value_info[:]
    model.graph.value_info.extend(info for name, info in types.items() if name not in stated)
    return model


def _read_only(input_value: Any) -> Any:
    if not isinstance(input_value, np.ndarray):
        return [_read_only(item) for item in input_value] if isinstance(input_value, list) else input_value
    view = input_value.view()
    view.setflags(write=False)
    return view


def _result(value: Any) -> Any:
    from nnadapter.drivers.reference_operators import EMPTY

    if value is None or value is EMPTY:
        return None
    if isinstance(value, (list, tuple)):
        return [_result(item) for item in value]
    array: Array = np.asarray(value)
    if array.dtype.kind in "US":
        return array.astype(object)
    return array if array.flags.writeable else array.copy()


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())
