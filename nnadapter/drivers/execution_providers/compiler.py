"""ONNX models on a provider: defects, verdicts and compilation."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from hashlib import sha256

import onnx

from nnadapter.drivers import Admission, Program, Reason, Trace, Unsupported, Verdict
from nnadapter.drivers.execution_providers.backing import Assignment, Backing, computes_half, marked, read_assignment
from nnadapter.drivers.execution_providers.program import EpProgram
from nnadapter.drivers.onnxruntime.driver import CpuContext
from nnadapter.drivers.onnxruntime.failures import brief, wrong_optimizers
from nnadapter.drivers.onnxruntime.sessions import Loadable, SessionProfile, loadable_of, profile_of
from nnadapter.drivers.refused_nodes import find_culprits
from nnadapter.errors import CompilationError
from nnadapter.onnx.construction import copied, tensor_info, with_inputs_for
from nnadapter.onnx.graphs import captured_names, has_open_inputs, size_names, values_of
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.references import is_reference
from nnadapter.onnx.schemas import value_of_attribute
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass
from partition.graph import Value

_SPATIAL = 2
_LEAST_BLOCK = 16
_SMALL_INTEGERS = ("int2", "int4", "uint2", "uint4")
_ATTENTION_BIAS, _HEAD_SINK = 10, 11
_REALS = ("float32", "float64")
"""Data types with wrong maximums and minimums of infinities on the CUDA provider; 16-bit floats have correct ones."""


@dataclass(frozen=True, eq=False)
class _ModelValueIndex:
    model: onnx.ModelProto

    @cached_property
    def constants(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.model.graph.initializer)

    @cached_property
    def casts(self) -> frozenset[str]:
        nodes = self.model.graph.node
        return frozenset(node.output[0] for node in nodes if node.op_type == "Cast" and not node.domain)

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output if name}

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(value.name for value in self.model.graph.output)

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.model.graph.node:
            for name in node.input:
                consumers.setdefault(name, []).append(node)
        return consumers

    @cached_property
    def types(self) -> Mapping[str, Value]:
        return values_of((*infer(self.model).values(), *map(tensor_info, self.model.graph.initializer)))

    def dtype(self, name: str) -> str:
        return self.types[name].dtype or "" if name in self.types else ""

    def shape(self, name: str) -> Sequence[int | str | None] | None:
        return self.types[name].shape if name in self.types else None


_CRASHES = frozenset({"QNNExecutionProvider"})
"""Providers that crash on some nodes; observed with QNN 2.7.0."""
_RANK_OF_CAST = 5
"""Rank at which QNN crashes on a Cast from int32 to int64."""


def crashing(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """Return refusals of nodes that crash the provider."""
    if provider not in _CRASHES:
        return {}
    facts = _ModelValueIndex(model)
    causes = {position: _crash_cause(node, facts) for position, node in enumerate(model.graph.node)}
    return {
        position: Unsupported(Reason.UNSUPPORTED_TYPE, f"{provider} crashes on {cause}")
        for position, cause in causes.items()
        if cause
    }


def _crash_cause(node: onnx.NodeProto, facts: _ModelValueIndex) -> str:
    names = (*node.input, *captured_names(node), *node.output)
    # QNN divides by the number of elements; observed on Neg of [0, 3].
    empty_name = next((name for name in names if 0 in (facts.shape(name) or ())), None)
    if empty_name is not None:
        return f"{empty_name!r}, an empty tensor"
    is_cast = node.op_type == "Cast" and not node.domain and facts.dtype(node.input[0]) == "int32"
    if is_cast and _attribute_value(node, "to") == onnx.TensorProto.INT64:
        shape = facts.shape(node.input[0])
        if shape is None or len(shape) == _RANK_OF_CAST:
            return f"a Cast from int32 to int64 of rank {_RANK_OF_CAST}"
    return ""


_NodeCheck = Callable[[onnx.NodeProto, _ModelValueIndex], bool]
_Forms = Mapping[str, tuple[_NodeCheck, Reason, str]]
"""ONNX op types, separated by spaces -> (check, reason, defect)."""


def _attribute_value(node: onnx.NodeProto, name: str) -> object:
    return next((value_of_attribute(attribute) for attribute in node.attribute if attribute.name == name), None)


def _any_node(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return True


def _is_float64(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return facts.dtype(node.input[0]) == "float64"


def _is_empty(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return 0 in (facts.shape(node.input[0]) or ())


def _has_vector(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return any(shape is not None and len(shape) == 1 for shape in map(facts.shape, node.input))


def _is_imprecise_extreme(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return facts.dtype(node.input[0]) in ("", *_REALS) or _is_empty(node, facts)


def _returns_processed_scores(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return len(node.output) > 3 and bool(node.output[3]) and bool(_attribute_value(node, "qk_matmul_output_mode"))


def _is_cast_without_kernel(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    to, of = (facts.dtype(name) for name in (node.output[0], node.input[0]))
    return to == "float4_e2m1fn" or (to == "bool" and of.startswith("float8"))


def _has_broadcast_scale(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    x, scale, axis = facts.shape(node.input[0]), facts.shape(node.input[1]), _attribute_value(node, "axis")
    first = axis if isinstance(axis, int) else -1
    return x is not None and scale is not None and tuple(scale) != tuple(x[first:])


def _has_small_blocks(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    size = _attribute_value(node, "block_size")
    return isinstance(size, int) and size < _LEAST_BLOCK


def _has_input(node: onnx.NodeProto, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])


def _is_unsigned(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return facts.dtype(node.input[0]).startswith("uint")


def _has_bias_and_sinks(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    return _has_input(node, _ATTENTION_BIAS) and (
        _has_input(node, _HEAD_SINK) or bool(_attribute_value(node, "smooth_softmax"))
    )


def _has_unsupported_rank(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    shape = facts.shape(node.input[0])
    return shape is not None and len(shape) - _SPATIAL not in (2, 3)


def _is_broadcast_matrix(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    """Return whether matrices of several rows are broadcast along dimension -3 to a consumer that may be wrong."""
    shapes = [facts.shape(name) for name in node.input]
    depths, heights = ([1 if len(shape or ()) < back else (shape or ())[-back] for shape in shapes] for back in (3, 2))
    is_repeated = depths[0] != depths[1] and heights[0] == heights[1] != 1
    return is_repeated and any(
        consumer.op_type not in _CORRECT_CONSUMERS for consumer in facts.consumers.get(node.output[0], ())
    )


def _is_saturating_cast(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    source, target = facts.dtype(node.input[0]), facts.dtype(node.output[0])
    return (
        (source == "uint8" and target == "float32")
        or (source in {"int32", "int64", "uint32", "uint64"} and target in {"uint8", "int8"})
        or (source in {"int32", "int64"} and target == "bool")
    )


def _has_small_integers(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    dtype, shape = facts.dtype(node.input[0]), facts.shape(node.input[1])
    if dtype not in ("", *_SMALL_INTEGERS):
        return False
    is_signed = dtype in ("", "int2") or (dtype == "int4" and not _has_input(node, 2))
    is_of_one_scale = shape is None or all(size == 1 for size in shape)
    return node.input[0] not in facts.constants or (is_signed and is_of_one_scale)


def _is_misquantized(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    is_small = facts.dtype(node.output[0]) in _SMALL_INTEGERS
    return is_small or node.input[0] in facts.casts or _is_dropped(node, facts)


def _is_dropped(quantize: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    """Return whether a QuantizeLinear and its DequantizeLinear are between operators on floats, so QNN drops them."""
    consumers = facts.consumers.get(quantize.output[0], ())
    reals = [consumer.output[0] for consumer in consumers if consumer.op_type == "DequantizeLinear"]
    producer = facts.producers.get(quantize.input[0])
    if not reals or (producer is not None and _is_quantized(producer, facts)):
        return False
    return not all(_are_consumers_quantized(name, facts) for name in reals)


def _are_consumers_quantized(name: str, facts: _ModelValueIndex) -> bool:
    consumers = facts.consumers.get(name, ())
    return (
        name not in facts.outputs and bool(consumers) and all(_is_quantized(consumer, facts) for consumer in consumers)
    )


def _is_quantized(node: onnx.NodeProto, facts: _ModelValueIndex) -> bool:
    producers = [facts.producers.get(name) for name in node.input if name and name not in facts.constants]
    results = [name for name in node.output if name]
    consumers = [consumer for name in results for consumer in facts.consumers.get(name, ())]
    return (
        all(producer is not None and producer.op_type == "DequantizeLinear" for producer in producers)
        and bool(consumers)
        and all(consumer.op_type == "QuantizeLinear" for consumer in consumers)
        and facts.outputs.isdisjoint(results)
    )


_CORRECT_CONSUMERS = frozenset(
    ("Add", "Elu", "HardSigmoid", "MatMul", "Mul", "Neg", "ReduceMean", "Relu", "Softmax", "Tanh", "Transpose")
)
_ATTRIBUTE, _TYPE, _RANK = Reason.UNSUPPORTED_ATTRIBUTE, Reason.UNSUPPORTED_DTYPE, Reason.UNSUPPORTED_RANK
_QNN: _Forms = {
    "Add Mul": (
        _is_broadcast_matrix,
        Reason.DEVICE_REFUSED,
        "broadcasts a matrix wrongly, or crashes, for some consumers of the result",
    ),
    "AveragePool": (
        lambda node, _: bool(_attribute_value(node, "count_include_pad")),
        _ATTRIBUTE,
        "does not count padding",
    ),
    "Cast": (_is_saturating_cast, _TYPE, "saturates this Cast, or returns 0 or 1"),
    "DequantizeLinear": (
        _has_small_integers,
        _TYPE,
        "misreads computed integers of 2 or 4 bits, and ignores signs of constants",
    ),
    "Gather GatherElements ScatterElements ScatterND": (
        lambda node, facts: node.input[1] not in facts.constants,
        _ATTRIBUTE,
        "misinterprets computed negative indices",
    ),
    "GatherND": (_any_node, _ATTRIBUTE, "misinterprets negative indices"),
    "Mish Softplus": (_any_node, _ATTRIBUTE, "is off by more than a hundredth"),
    "OneHot": (
        lambda node, facts: node.input[0] not in facts.constants,
        _ATTRIBUTE,
        "misinterprets computed indices that are negative or exceed 32 bits",
    ),
    "Pad": (
        lambda node, _: _attribute_value(node, "mode") == "edge",
        _ATTRIBUTE,
        "pads with wrong values",
    ),
    # It truncates the elements after the last 128 of a matrix.
    "QuantizeLinear": (
        _is_misquantized,
        Reason.UNSUPPORTED_TYPE,
        "truncates results of Cast, does not round to 2 or 4 bits, and drops immediate dequantization",
    ),
}
"""Defects of QNN, observed with 2.7.0 in the emulator."""
_CUDA: _Forms = {
    "Attention": (_returns_processed_scores, _ATTRIBUTE, "returns only unprocessed attention scores"),
    "Cast CastLike": (_is_cast_without_kernel, _TYPE, "accepts this cast without a kernel, or with a wrong one"),
    "GatherBlockQuantized": (lambda node, _: _has_input(node, 3), _ATTRIBUTE, "is inaccurate with zero points"),
    "Gelu": (lambda node, facts: facts.shape(node.input[0]) == (), _RANK, "does not support scalars"),
    "GroupQueryAttention": (
        _has_bias_and_sinks,
        _ATTRIBUTE,
        "does not support attention_bias together with smooth_softmax or head_sink",
    ),
    "HardSigmoid LogSoftmax": (_is_float64, _TYPE, "computes float64 in float32"),
    "LayerNormalization": (
        lambda node, facts: _is_float64(node, facts) or _has_broadcast_scale(node, facts),
        _TYPE,
        "computes float64 in float32, and requires a scale per normalized element",
    ),
    "LRN": (_has_unsupported_rank, _RANK, "supports only images of 2 or 3 spatial dimensions"),
    "MatMulNBits": (_has_small_blocks, _ATTRIBUTE, f"requires blocks of {_LEAST_BLOCK} or more"),
    "RMSNormalization": (_has_broadcast_scale, _RANK, "requires a scale per normalized element"),
    "ReduceMax ReduceMin": (
        _is_imprecise_extreme,
        _TYPE,
        "computes no maximum or minimum of infinities or empty tensors",
    ),
    "Shrink": (_is_unsigned, _TYPE, "returns 0 for unsigned differences below 0"),
}
"""Defects of the CUDA provider, observed with ONNX Runtime 1.31 on H100 and H200."""
_WEB_GPU: _Forms = {
    "BatchNormalization": (lambda node, _: bool(_attribute_value(node, "training_mode")), _ATTRIBUTE, "does not train"),
    "LayerNormalization": (_has_broadcast_scale, _RANK, "requires a scale per normalized element"),
    "LogSoftmax ReduceMax ReduceMin ReduceSum Softmax": (_is_empty, _RANK, "does not support empty tensors"),
    "MatMul": (_has_vector, _RANK, "multiplies vectors by matrices wrongly"),
    "MatMulNBits": (_has_small_blocks, _ATTRIBUTE, f"requires blocks of {_LEAST_BLOCK} or more"),
    "Resize": (lambda node, _: bool(_attribute_value(node, "antialias")), _ATTRIBUTE, "has no antialiasing"),
}
"""Defects of the WebGPU provider, observed with ONNX Runtime 1.27 on a software GPU."""
_FORMS: Mapping[str, _Forms] = {
    provider: {op_type: form for op_types, form in forms.items() for op_type in op_types.split()}
    for provider, forms in (
        ("CUDAExecutionProvider", _CUDA),
        ("QNNExecutionProvider", _QNN),
        ("WebGpuExecutionProvider", _WEB_GPU),
    )
}
_IN_32_BITS = frozenset(("QNNExecutionProvider",))
_MAY_LACK_HALF = frozenset(("WebGpuExecutionProvider",))
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def float16_nodes(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """Return refusals of float16 nodes, for a provider that accepts them without hardware support."""
    if provider not in _MAY_LACK_HALF:
        return {}
    facts, reason = _ModelValueIndex(model), f"{provider} accepts float16, but the hardware does not support it"
    return {
        position: Unsupported(Reason.UNSUPPORTED_DTYPE, reason)
        for position, node in enumerate(model.graph.node)
        if any(facts.dtype(name) == "float16" for name in (*node.input, *node.output))
    }


def miscomputed_nodes(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """Return refusals of nodes that the provider computes wrongly."""
    forms, facts = _FORMS.get(provider, {}), _ModelValueIndex(model)
    refused: dict[int, Unsupported] = {}
    for position, node in enumerate(model.graph.node):
        if provider in _IN_32_BITS and any(
            facts.dtype(name) == "int64" and name not in facts.constants for name in node.input
        ):
            refused[position] = Unsupported(_TYPE, f"{provider} computes int64 in 32 bits")
            continue
        matches, reason, problem = forms.get(node.op_type, (None, Reason.DEVICE_REFUSED, ""))
        if matches is not None and node.domain in _DOMAINS and matches(node, facts):
            refused[position] = Unsupported(reason, f"{provider} {problem}")
    return refused


def without(model: onnx.ModelProto, positions: Container[int]) -> onnx.ModelProto:
    """Return `model` without some nodes.

    Values between removed and remaining nodes become inputs or outputs.
    """
    remainder = copied(model)
    remaining_nodes = [node for position, node in enumerate(model.graph.node) if position not in positions]
    removed_nodes = [node for position, node in enumerate(model.graph.node) if position in positions]
    produced_names, lost = (
        {name for node in nodes for name in node.output if name} for nodes in (remaining_nodes, removed_nodes)
    )
    graph, types = remainder.graph, infer(model)
    output_names = {value.name for value in graph.output}
    del graph.node[:], graph.output[:]
    graph.node.extend(remaining_nodes)
    graph.input.extend(
        types.get(name) or onnx.ValueInfoProto(name=name) for name in _read(remaining_nodes) if name in lost
    )
    graph.output.extend(value for value in model.graph.output if value.name not in lost)
    added_names = (name for name in _read(removed_nodes) if name in produced_names and name not in output_names)
    graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added_names)
    return remainder


def _read(nodes: list[onnx.NodeProto]) -> dict[str, None]:
    return dict.fromkeys(name for node in nodes for name in (*node.input, *captured_names(node)))


_UNCHANGED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
"""Level that keeps the original graph, so that every node is found again."""
_REMEMBERED = 64


class Asker:
    """Verdicts and compilation for a provider."""

    def __init__(self, backing: Backing, trace: Trace, lane: str) -> None:
        self._backing = backing
        self._trace, self._lane = trace, lane
        self._lock = new_lock()
        self._answers: dict[bytes, Sequence[Verdict]] = {}

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return a verdict per node, from ONNX Runtime's assignment of nodes.

        Only sessions have an assignment, so the provider compiles the model. If that fails, a search finds the
        responsible nodes.
        """
        # Weights do not affect verdicts.
        model = with_inputs_for(model, {tensor.name for tensor in filter(is_reference, model.graph.initializer)})
        key = sha256(model.SerializeToString()).digest()
        with self._lock:
            cached_answer = self._answers.get(key)
        if cached_answer is not None:
            return cached_answer
        answer = self._judge(model)
        with self._lock:
            if len(self._answers) >= _REMEMBERED:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer
        return answer

    def admit(self, model: onnx.ModelProto) -> Admission:
        """Accept static shapes unchecked. Compile a model with dynamic shapes, and refuse it if nodes go to the CPU."""
        if not has_open_inputs(model):
            return Admission()
        try:
            session = self._open(loadable_of(marked(model), by_address=True), without=wrong_optimizers(model))
        except Exception as error:  # noqa: BLE001  a refusal
            return Admission(verdict=self._refusal(error))
        assignment = self._assignment(session, model)
        if not assignment.cpu_work:
            return Admission()
        return Admission(verdict=Unsupported(Reason.DEVICE_REFUSED, f"{self._backing.provider} {assignment.cpu_work}"))

    def compile(self, model: onnx.ModelProto) -> Program:
        """Compile a segment.

        Raises:
            CompilationError: the provider fails, or leaves nodes to the CPU.
        """
        loaded = loadable_of(marked(model), by_address=True)
        try:
            profile = profile_of(self._trace, self._lane, len(model.graph.node))
            session = self._open(loaded, profile=profile, without=wrong_optimizers(model))
        except Exception as error:
            raise self._failed(brief(error), self._culprits(model)) from error
        assignment = self._assignment(session, model)
        if assignment.cpu_work:
            verdicts = {position: self._verdict(assignment, position) for position in assignment.cpu_nodes}
            refused = {at: verdict for at, verdict in verdicts.items() if isinstance(verdict, Unsupported)}
            raise self._failed(f"it {assignment.cpu_work}", refused)
        return EpProgram(session, self._backing, loaded, profile)

    def close(self) -> None:
        with self._lock:
            self._answers.clear()

    def _judge(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        provider, count = self._backing.provider, len(model.graph.node)
        half = float16_nodes(model, provider)
        refused = {} if not half or self._computes_half else half
        refused |= {**miscomputed_nodes(model, provider), **crashing(model, provider), **_unknown_nodes(model)}
        if not refused:
            try:
                assignment = self._assigned(marked(model))
                return [self._verdict(assignment, position) for position in range(count)]
            except Exception as error:  # noqa: BLE001  a refusal
                refused = self._culprits(model)
                if not refused:
                    return [self._refusal(error)] * count
        return self._judge_without(model, refused)

    def _judge_without(self, model: onnx.ModelProto, refused: Mapping[int, Unsupported]) -> Sequence[Verdict]:
        count = len(model.graph.node)
        refused = {**_untyped_consumers(model, refused), **refused}
        if len(refused) == count:
            return [refused[position] for position in range(count)]
        try:
            assignment = self._assigned(without(marked(model), refused))
        except Exception as error:  # noqa: BLE001  a refusal
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
        return self._backing.open(model, level, profile, without)

    def _assignment(self, session: onnxruntime.InferenceSession, model: onnx.ModelProto) -> Assignment:
        """Return the assignment without nodes that compute dynamic sizes, since these may run on the CPU."""
        assignment = read_assignment(session, self._backing.provider)
        return assignment.without(size_computations(model)) if has_open_inputs(model) else assignment

    def _verdict(self, assignment: Assignment, position: int) -> Verdict:
        return assignment.verdict(position, self._backing.provider)

    def _culprits(self, model: onnx.ModelProto) -> dict[int, Unsupported]:
        return find_culprits(model, self._attempt)

    def _attempt(self, part: onnx.ModelProto) -> Unsupported | None:
        try:
            self._open(loadable_of(part, by_address=True), _UNCHANGED)
        except Exception as error:  # noqa: BLE001  a refusal
            return self._refusal(error)
        return None

    def _refusal(self, error: Exception) -> Unsupported:
        return Unsupported(Reason.DEVICE_REFUSED, f"{self._backing.provider} refuses the subgraph: {brief(error)}")

    def _failed(self, reason: str, refused: Mapping[int, Unsupported]) -> CompilationError:
        return CompilationError(
            f"{self._backing.provider} does not compile the segment: {reason}; "
            "check the provider's options, or exclude these nodes by a rule",
            device=self._backing.provider,
            refused=refused,
        )


def _unknown_nodes(model: onnx.ModelProto) -> dict[int, Unsupported]:
    verdicts = enumerate(CpuContext().supported(model))
    return {position: verdict for position, verdict in verdicts if isinstance(verdict, Unsupported)}


def _untyped_consumers(model: onnx.ModelProto, refused: Container[int]) -> dict[int, Unsupported]:
    """Return refusals of nodes whose inputs have no known type, which crash providers."""
    types, unknown = infer(model), dict[str, str]()
    refusals: dict[int, Unsupported] = {}
    for position, node in enumerate(model.graph.node):
        read = next((name for name in (*node.input, *captured_names(node)) if name in unknown), None)
        if position in refused or read is not None:
            origin = node.op_type if read is None else unknown[read]
            unknown.update((name, origin) for name in node.output if name and name not in types)
        if read is not None and position not in refused:
            detail = f"{read!r} has no known type, because it depends on a refused {unknown[read]}"
            refusals[position] = Unsupported(Reason.UNSUPPORTED_TYPE, detail)
    return refusals


def size_computations(model: onnx.ModelProto) -> frozenset[int]:
    """Return positions of nodes that compute sizes; providers leave these to the CPU."""
    names = size_names(model)
    return frozenset(at for at, node in enumerate(model.graph.node) if names.issuperset(filter(None, node.output)))
