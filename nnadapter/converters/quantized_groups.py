"""Fusion of dequantization, a real-valued op and quantization into one operation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isclose

from nnadapter.converters.context import ConversionContext, QuantizedNode, invalid
from nnadapter.converters.quantization import as_quantized, bias_quantization, quantized_type, reinterpreted
from nnadapter.converters.registry import OnnxNode, Reason, Refusal, lookup
from nnadapter.ir import AttributeValue, DataType, QuantizedType
from nnadapter.onnx.schemas import MICROSOFT
from nnadapter.records import dataclass, field, replace


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


GROUPED = _types(
    "Conv ConvTranspose MatMul Gemm Add Sub Mul Div Max Min Concat AveragePool GlobalAveragePool ReduceMean MaxPool"
    " Resize Softmax LogSoftmax Relu Clip Sigmoid Tanh"
    " HardSigmoid HardSwish LeakyRelu Elu Selu Gelu Softplus Softsign Mish Swish Erf Exp Log Sqrt Reciprocal Sin Cos"
    " Abs Neg Reshape Transpose Squeeze Unsqueeze Flatten Expand Tile Slice Gather DepthToSpace SpaceToDepth"
)

ACTIVATED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Ops that may be fused with an activation."""
ACTIVATIONS = frozenset({"Relu", "Clip"})

_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
_BIAS_TOLERANCE = 1e-5


def convert_quantized_group(
    context: ConversionContext,
    node: OnnxNode,
    sources: Mapping[str, OnnxNode],
    target: OnnxNode,
    activation: OnnxNode | None = None,
) -> None:
    """Convert a group to one operation on quantized operands, or raise Refusal.

    1. The op's own converter must produce one operation, apart from operations that move elements.
    2. Products are summed exactly and rounded once; other ops have bitwise the results of separate nodes.
    3. Biases must be int32 with the scale of the sums.

    `sources` map value names to their DequantizeLinear. `activation` is a Relu or Clip before `target`, the
    QuantizeLinear.
    """
    convert = lookup(node.domain, node.op_type, node.since_version)
    if convert is None or node.op_type not in GROUPED:
        raise Refusal(
            Reason.UNSUPPORTED_OPERATION,
            f"{node.op_type} has no quantized form, so it is not fused with its QuantizeLinear",
        )
    result = _constant_type(context, target)
    operands = {name: _operand(context, sources[name]) for name in node.inputs if name in sources}
    operands |= _moved_operands(context, node, operands)
    if node.op_type in _BIASED and node.input(2):
        operands[node.input(2)] = _bias(context, node, operands)
    if node.op_type == "Gemm":
        node = _with_rows(context, node, operands)
    meaning = QuantizedNode(operands, result, _fused(context, activation))
    with context.quantized(meaning):
        convert(context, replace(node, outputs=target.outputs))


def _fused(context: ConversionContext, activation: OnnxNode | None) -> Mapping[str, AttributeValue]:
    if activation is None:
        return {}
    if activation.op_type == "Relu":
        return {"fuse_code": "relu"}
    bounds = [
        _bound(context, activation, position, name, default)
        for position, (name, default) in enumerate((("min", -inf), ("max", inf)), start=1)
    ]
    return {"fuse_code": "clip", "fuse_parameters": tuple(bounds)}


def _bound(context: ConversionContext, clip: OnnxNode, position: int, name: str, default: float) -> float:
    bound = context.optional_constant(clip, position)
    if bound is None:
        return clip.number(name, default)
    if bound.size != 1:
        raise invalid(f"{name} of {clip.op_type} has {bound.size} elements; expected one")
    return float(bound.reshape(()))


def _with_rows(context: ConversionContext, node: OnnxNode, operands: dict[str, int]) -> OnnxNode:
    weight = operands.get(node.input(1))
    value = None if weight is None else context.value_of(weight)
    if weight is None or value is None or value.ndim != 2 or node.integer("transB", 0):
        return node
    quantization = context.type_of(weight).quantization
    assert quantization is not None
    turned = replace(quantization, axis=None if quantization.axis is None else 1 - quantization.axis)
    operands[node.input(1)] = context.add_constant(value.T, turned)
    return replace(node, attributes={**node.attributes, "transB": 1})


def _constant_type(context: ConversionContext, node: OnnxNode) -> QuantizedType:
    known_type = quantized_type(context, node)
    if known_type is None:
        raise Refusal(
            Reason.NOT_CONSTANT,
            f"scale or zero point of {node.op_type} {node.name!r} is blockwise, or known only when the model runs; "
            "expected constants, one for the tensor or one for each index of an axis",
        )
    return known_type


def _operand(context: ConversionContext, source: OnnxNode) -> int:
    return as_quantized(context, source.input(0), _constant_type(context, source).quantization)


def _moved_operands(context: ConversionContext, node: OnnxNode, operands: Collection[str]) -> dict[str, int]:
    other_names = [name for name in dict.fromkeys(node.inputs) if name not in operands]
    dequantized_values = [(name, context.dequantized(name)) for name in other_names]
    return {
        name: context.add_constant(it.integers, it.quantization) for name, it in dequantized_values if it is not None
    }


def _bias(context: ConversionContext, node: OnnxNode, operands: Mapping[str, int]) -> int:
    x, filter_, bias = (context.type_of(operands[name]) if name in operands else None for name in node.inputs[:3])
    quantizations = [None if type_ is None else type_.quantization for type_ in (x, filter_, bias)]
    first, second, own_quantization = quantizations
    if bias is None or own_quantization is None or first is None or second is None or bias.dtype is not DataType.INT32:
        raise Refusal(Reason.UNSUPPORTED_DTYPE, f"bias of {node.op_type} is not quantized as int32")
    expected = bias_quantization(first, second)
    many = own_quantization.scale * len(expected.scale) if len(own_quantization.scale) == 1 else own_quantization.scale
    if (
        len(many) != len(expected.scale)
        or any(own_quantization.zero_point)
        or not all(map(_is_close, many, expected.scale))
    ):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"bias of {node.op_type} has a nonzero zero point, or a scale other than input scale * filter scale",
        )
    return reinterpreted(context, operands[node.input(2)], expected)


def _is_close(scale: float, expected: float) -> bool:
    return isclose(scale, expected, rel_tol=_BIAS_TOLERANCE)


_SOURCE, _TARGET = "DequantizeLinear", "QuantizeLinear"
_DOMAINS = frozenset({"", MICROSOFT})
"""Domains of quantizing ops; com.microsoft supports 16 bits before opset 21."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Positions of nodes that become one quantized operation."""

    node: int
    """Real-valued op."""
    sources: Mapping[str, int]
    """Value name -> DequantizeLinear."""
    target: int
    """QuantizeLinear, the last node."""
    activation: int | None

    @property
    def members(self) -> tuple[int, ...]:
        between = () if self.activation is None else (self.activation,)
        return tuple(sorted({self.node, self.target, *self.sources.values(), *between}))


def find_groups(
    nodes: Sequence[OnnxNode], external_values: Collection[str], excluded: Collection[str] = ()
) -> tuple[Group, ...]:
    """Return a graph's fusible groups, in order of their last nodes.

    A group ends in a QuantizeLinear, the only consumer of a fusible op or of an activation after it. At least one of
    the op's inputs is dequantized. No value in `external_values` or `excluded` becomes internal to a group.
    """
    targets = [position for position, node in enumerate(nodes) if _is(node, _TARGET)]
    if not targets:
        return ()
    index = _Index(nodes, frozenset(external_values) | frozenset(excluded))
    candidates = map(index.group, targets)
    return tuple(group for group in candidates if group is not None)


def shared_sources(
    groups: Sequence[Group], nodes: Sequence[OnnxNode], external_values: Collection[str]
) -> dict[int, list[int]]:
    """Return, for each DequantizeLinear with several readers, the groups that need a copy."""
    readers: dict[str, set[int]] = {}
    for position, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(position)
    owners: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for source in dict.fromkeys(group.sources.values()):
            owners.setdefault(source, []).append(number)
    shared = {}
    for source, numbers in owners.items():
        name = nodes[source].outputs[0]
        inside = {groups[number].node for number in numbers}
        free = name in external_values or readers[name] > inside
        copying_groups = numbers if free else numbers[1:]
        if copying_groups:
            shared[source] = copying_groups
    return shared


@dataclass(slots=True)
class _Index:
    nodes: Sequence[OnnxNode]
    outside: frozenset[str]
    producers: dict[str, int] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            self.producers.update((name, position) for name in node.outputs if name)
            for name in dict.fromkeys(node.inputs):
                self.readers[name] = self.readers.get(name, 0) + 1

    def group(self, target: int) -> Group | None:
        node, activation = self._maker(self.nodes[target].input(0)), None
        if node is not None and self.nodes[node].op_type in ACTIVATIONS:
            producer = self._maker(self.nodes[node].input(0))
            if producer is not None and self.nodes[producer].op_type in ACTIVATED:
                node, activation = producer, node
        if node is None or self.nodes[node].domain or self.nodes[node].op_type not in GROUPED:
            return None
        sources = {name: self.producers[name] for name in self.nodes[node].inputs if self._is_source(name)}
        return Group(node=node, sources=sources, target=target, activation=activation) if sources else None

    def _maker(self, name: str) -> int | None:
        if name in self.outside or self.readers.get(name) != 1 or name not in self.producers:
            return None
        node = self.producers[name]
        return node if [output for output in self.nodes[node].outputs if output] == [name] else None

    def _is_source(self, name: str) -> bool:
        return name in self.producers and _is(self.nodes[self.producers[name]], _SOURCE)


def _is(node: OnnxNode, op_type: str) -> bool:
    return node.op_type == op_type and node.domain in _DOMAINS
