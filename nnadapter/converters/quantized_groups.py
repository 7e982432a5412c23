"""Groups of nodes that mean one quantized operation: an op on reals between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf, isclose

from nnadapter.converters.context import ConversionContext, QuantizedNode
from nnadapter.converters.quantization import add_storage_cast, as_quantized, bias_quantization
from nnadapter.converters.quantize_linear import quantized_type
from nnadapter.converters.registry import lookup
from nnadapter.ir.operand import DataType, QuantizedType
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


GROUPED = _types(
    "Conv MatMul Gemm Add Sub Mul Div Max Min Concat AveragePool GlobalAveragePool ReduceMean MaxPool Resize"
    " Softmax LogSoftmax Relu Clip Sigmoid Tanh"
    " HardSigmoid HardSwish LeakyRelu Elu Selu Gelu Softplus Softsign Mish Swish Erf Exp Log Sqrt Reciprocal Sin Cos"
    " Abs Neg Reshape Transpose Squeeze Unsqueeze Flatten Expand Tile Slice Gather DepthToSpace SpaceToDepth"
)
"""Op types that may stand between DequantizeLinear and QuantizeLinear as one quantized operation."""

ACTIVATED = frozenset({"Conv", "Gemm", "MatMul"})
"""Those of `GROUPED` that an activation may follow."""
ACTIVATIONS = frozenset({"Relu", "Clip"})
"""What may stand between one of these and QuantizeLinear."""

_BIASED = frozenset({"Conv", "Gemm"})
_BIAS_TOLERANCE = 1e-5


def convert_quantized_group(
    context: ConversionContext,
    node: OnnxNode,
    sources: Mapping[str, OnnxNode],
    target: OnnxNode,
    activation: OnnxNode | None = None,
) -> None:
    """Convert a group of nodes as one operation on quantized operands, whose result is that of `target`.

    1. The ordinary converter of `node` is used, which has to make one operation (or movers and one operation) of it.
    2. A convolution or product adds up integers exactly and rounds once. All others give, bit by bit, what the nodes
       one by one would.
    3. The bias of Conv and Gemm must be int32 and have the scale of the sums.

    Args:
        context: what it is added to; it stands at the group, as its origin.
        node: the op on reals, of `GROUPED`.
        sources: the DequantizeLinear that makes a value, by the value's name; of every input that is not constant.
        target: the QuantizeLinear that reads the node's first output.
        activation: the Relu or Clip between `node` and `target`.

    Raises:
        Refusal: scales or zero points are known only at the run, or the operation does not take such operands.
    """
    convert = lookup(node.domain, node.op_type, node.since_version)
    if convert is None or node.op_type not in GROUPED:
        raise Refusal(Reason.UNSUPPORTED_OPERATION, f"{node.op_type} has no quantized form")
    result = _known(context, target)
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
    """The attributes of an operation that applies the activation itself."""
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
    """A bound of Clip: an attribute up to version 6, a constant since version 11."""
    bound = context.optional_constant(clip, position)
    if bound is None:
        return clip.number(name, default)
    if bound.size != 1:
        raise Refusal(Reason.INVALID_NODE, f"{name} of {clip.op_type} has {bound.size} elements; expected one")
    return float(bound.reshape(()))


def _with_rows(context: ConversionContext, node: OnnxNode, operands: dict[str, int]) -> OnnxNode:
    """The Gemm with its constant weight as [units, depth], which is how a fully connected layer has it."""
    weight = operands.get(node.input(1))
    value = None if weight is None else context.value_of(weight)
    if weight is None or value is None or value.ndim != 2 or node.integer("transB", 0):
        return node
    quantization = context.type_of(weight).quantization
    assert quantization is not None
    turned = replace(quantization, axis=None if quantization.axis is None else 1 - quantization.axis)
    operands[node.input(1)] = context.add_constant(value.T, turned)
    return replace(node, attributes={**node.attributes, "transB": 1})


def _known(context: ConversionContext, node: OnnxNode) -> QuantizedType:
    known_type = quantized_type(context, node)
    if known_type is None:
        raise Refusal(
            Reason.NOT_CONSTANT,
            f"scale or zero point of {node.op_type} {node.name!r} is in blocks, or known only when the model runs; "
            "expected one per tensor or per index of an axis, known before",
        )
    return known_type


def _operand(context: ConversionContext, source: OnnxNode) -> int:
    return as_quantized(context, source.input(0), _known(context, source).quantization)


def _moved_operands(context: ConversionContext, node: OnnxNode, operands: Collection[str]) -> dict[str, int]:
    """Constants that were dequantized and then moved, by an Identity say, as integers."""
    others = [name for name in dict.fromkeys(node.inputs) if name not in operands]
    known = [(name, context.dequantized(name)) for name in others]
    return {name: context.add_constant(it.integers, it.quantization) for name, it in known if it is not None}


def _bias(context: ConversionContext, node: OnnxNode, operands: Mapping[str, int]) -> int:
    """The bias, said to have exactly the scale of the sums."""
    x, filter_, bias = (context.type_of(operands[name]) if name in operands else None for name in node.inputs[:3])
    quantizations = [None if type_ is None else type_.quantization for type_ in (x, filter_, bias)]
    first, second, own_quantization = quantizations
    if bias is None or own_quantization is None or first is None or second is None or bias.dtype is not DataType.INT32:
        raise Refusal(Reason.UNSUPPORTED_DTYPE, f"bias of {node.op_type} is not quantized as int32")
    wanted = bias_quantization(first, second)
    many = own_quantization.scale * len(wanted.scale) if len(own_quantization.scale) == 1 else own_quantization.scale
    if (
        len(many) != len(wanted.scale)
        or any(own_quantization.zero_point)
        or not all(map(_is_close, many, wanted.scale))
    ):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"bias of {node.op_type} has another scale than its input times its filter, or a zero point",
        )
    operand = operands[node.input(2)]
    value = context.value_of(operand)
    return add_storage_cast(context, operand, wanted) if value is None else context.add_constant(value, wanted)


def _is_close(scale: float, wanted: float) -> bool:
    return isclose(scale, wanted, rel_tol=_BIAS_TOLERANCE)
