"""What a provider takes and then computes otherwise than ONNX says, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.values import value_of_type
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE
from partition.verdict import Reason, Unsupported

_Shape = Sequence[int | str | None] | None
_SPATIAL = 2
"""Dimensions in front of those of a picture."""
_LEAST_BLOCK = 16
_SMALL_INTEGERS = ("int2", "int4", "uint2", "uint4")
_ATTENTION_BIAS, _HEAD_SINK = 10, 11
"""Inputs of GroupQueryAttention."""
_REALS = ("float32", "float64")
"""Of those of 16 bits it finds the infinities."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of a model's values."""

    model: onnx.ModelProto

    @cached_property
    def constants(self) -> frozenset[str]:
        """Names of values that are known beforehand."""
        return frozenset(tensor.name for tensor in self.model.graph.initializer)

    @cached_property
    def casts(self) -> frozenset[str]:
        """Names of what a Cast makes."""
        nodes = self.model.graph.node
        return frozenset(node.output[0] for node in nodes if node.op_type == "Cast" and not node.domain)

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that computes a value, by the value's name."""
        return {name: node for node in self.model.graph.node for name in node.output if name}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(value.name for value in self.model.graph.output)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        """The nodes that read a value, by its name."""
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.model.graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        return readers

    @cached_property
    def types(self) -> Mapping[str, tuple[str | None, _Shape]]:
        """Data types and shapes, as far as they are known."""
        values = {name: value_of_type(name, info.type) for name, info in infer(self.model).items()}
        types: dict[str, tuple[str | None, _Shape]] = {
            name: (value.dtype, value.shape) for name, value in values.items()
        }
        for tensor in self.model.graph.initializer:
            types[tensor.name] = DTYPE_OF_ELEMENT_TYPE.get(tensor.data_type), tuple(tensor.dims)
        return types

    def dtype(self, name: str) -> str:
        """The data type of a value, empty if it is not known."""
        return self.types.get(name, (None, None))[0] or ""

    def shape(self, name: str) -> _Shape:
        """The shape of a value, None if it is not known."""
        return self.types.get(name, (None, None))[1]


_Tells = Callable[[onnx.NodeProto, _Known], bool]
_Forms = Mapping[str, tuple[_Tells, Reason, str]]
"""By op of ONNX: which nodes, the reason's code, and what the provider does with them."""


def _stated(node: onnx.NodeProto, name: str) -> object:
    return next((value_of_attribute(attribute) for attribute in node.attribute if attribute.name == name), None)


def _computed_indices(node: onnx.NodeProto, facts: _Known) -> bool:
    return node.input[1] not in facts.constants


def _always(node: onnx.NodeProto, facts: _Known) -> bool:
    return True


def _of_double(node: onnx.NodeProto, facts: _Known) -> bool:
    return facts.dtype(node.input[0]) == "float64"


def _of_nothing(node: onnx.NodeProto, facts: _Known) -> bool:
    return 0 in (facts.shape(node.input[0]) or ())


def _of_a_vector(node: onnx.NodeProto, facts: _Known) -> bool:
    return any(shape is not None and len(shape) == 1 for shape in map(facts.shape, node.input))


def _extreme_of_reals(node: onnx.NodeProto, facts: _Known) -> bool:
    return facts.dtype(node.input[0]) in ("", *_REALS) or _of_nothing(node, facts)


def _scores_that_are_changed(node: onnx.NodeProto, facts: _Known) -> bool:
    return len(node.output) > 3 and bool(node.output[3]) and bool(_stated(node, "qk_matmul_output_mode"))


def _cast_without_kernel(node: onnx.NodeProto, facts: _Known) -> bool:
    to, of = (facts.dtype(name) for name in (node.output[0], node.input[0]))
    return to == "float4_e2m1fn" or (to == "bool" and of.startswith("float8"))


def _spread_scale(node: onnx.NodeProto, facts: _Known) -> bool:
    """A scale that has to be broadcast to what is normalized; the provider reads as many as those are."""
    x, scale, axis = facts.shape(node.input[0]), facts.shape(node.input[1]), _stated(node, "axis")
    first = axis if isinstance(axis, int) else -1
    return x is not None and scale is not None and tuple(scale) != tuple(x[first:])


def _normalized_otherwise(node: onnx.NodeProto, facts: _Known) -> bool:
    return _of_double(node, facts) or _spread_scale(node, facts)


def _small_blocks(node: onnx.NodeProto, facts: _Known) -> bool:
    size = _stated(node, "block_size")
    return isinstance(size, int) and size < _LEAST_BLOCK


def _given(node: onnx.NodeProto, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])


def _unsigned(node: onnx.NodeProto, facts: _Known) -> bool:
    return facts.dtype(node.input[0]).startswith("uint")


def _bias_and_sinks(node: onnx.NodeProto, facts: _Known) -> bool:
    """GroupQueryAttention with attention_bias, and a softmax of one element more: `smooth_softmax` or `head_sink`."""
    return _given(node, _ATTENTION_BIAS) and (_given(node, _HEAD_SINK) or bool(_stated(node, "smooth_softmax")))


def _zero_points(node: onnx.NodeProto, facts: _Known) -> bool:
    return _given(node, 3)


def _no_picture(node: onnx.NodeProto, facts: _Known) -> bool:
    shape = facts.shape(node.input[0])
    return shape is not None and len(shape) - _SPATIAL not in (2, 3)


def _repeated_for_each(node: onnx.NodeProto, facts: _Known) -> bool:
    """A matrix, or several columns, that is the same for each index of the third dimension from the end."""
    shapes = [facts.shape(name) for name in node.input]
    depths, heights = ([1 if len(shape or ()) < back else (shape or ())[-back] for shape in shapes] for back in (3, 2))
    is_repeated = depths[0] != depths[1] and heights[0] == heights[1] != 1
    return is_repeated and any(
        reader.op_type not in _BEHIND_REPEATED for reader in facts.readers.get(node.output[0], ())
    )


def _cast_of_other_numbers(node: onnx.NodeProto, facts: _Known) -> bool:
    """Check for a cast that saturates instead of dropping high bits, or that gives 0 and 1."""
    source, target = facts.dtype(node.input[0]), facts.dtype(node.output[0])
    return (
        (source == "uint8" and target == "float32")
        or (source in {"int32", "int64", "uint32", "uint64"} and target in {"uint8", "int8"})
        or (source in {"int32", "int64"} and target == "bool")
    )


def _small_integers(node: onnx.NodeProto, facts: _Known) -> bool:
    """Check for computed integers of 2 or 4 bits, and constants of them with a sign and one scale for all.

    A zero point makes constants of 4 bits right.
    """
    dtype, shape = facts.dtype(node.input[0]), facts.shape(node.input[1])
    if dtype and dtype not in _SMALL_INTEGERS:
        return False
    is_signed = dtype in ("", "int2") or (dtype == "int4" and not _given(node, 2))
    is_of_one_scale = shape is None or all(size == 1 for size in shape)
    return node.input[0] not in facts.constants or (is_signed and is_of_one_scale)


def _quantized_otherwise(node: onnx.NodeProto, facts: _Known) -> bool:
    is_small = facts.dtype(node.output[0]) in _SMALL_INTEGERS
    return is_small or node.input[0] in facts.casts or _is_dropped(node, facts)


def _is_dropped(quantize: onnx.NodeProto, facts: _Known) -> bool:
    """Check for a QuantizeLinear and a DequantizeLinear with operators on reals at both ends."""
    readers = facts.readers.get(quantize.output[0], ())
    reals = [reader.output[0] for reader in readers if reader.op_type == "DequantizeLinear"]
    maker = facts.makers.get(quantize.input[0])
    if not reals or (maker is not None and _is_quantized(maker, facts)):
        return False
    return not all(_are_readers_quantized(name, facts) for name in reals)


def _are_readers_quantized(name: str, facts: _Known) -> bool:
    readers = facts.readers.get(name, ())
    return name not in facts.outputs and bool(readers) and all(_is_quantized(reader, facts) for reader in readers)


def _is_quantized(node: onnx.NodeProto, facts: _Known) -> bool:
    """Check whether a node reads dequantized values and constants, and all that reads its results quantizes them."""
    makers = [facts.makers.get(name) for name in node.input if name and name not in facts.constants]
    results = [name for name in node.output if name]
    readers = [reader for name in results for reader in facts.readers.get(name, ())]
    return (
        all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)
        and bool(readers)
        and all(reader.op_type == "QuantizeLinear" for reader in readers)
        and facts.outputs.isdisjoint(results)
    )


_BEHIND_REPEATED = frozenset(
    ("Add", "Elu", "HardSigmoid", "MatMul", "Mul", "Neg", "ReduceMean", "Relu", "Softmax", "Tanh", "Transpose")
)
"""What QNN computes rightly behind a sum or a product with what is repeated."""
_ATTRIBUTE, _TYPE, _RANK = Reason.UNSUPPORTED_ATTRIBUTE, Reason.UNSUPPORTED_DTYPE, Reason.UNSUPPORTED_RANK
_INFINITIES = "has no maximum and minimum of infinities, nor of nothing"
_NOTHING = "takes no tensors without elements"
_INDICES = "takes computed indices below 0 for others"
_REPEATED = "repeats a matrix over the dimension before it wrongly, or crashes, where some ops read the result"
_QNN: _Forms = {
    "Add": (_repeated_for_each, Reason.DEVICE_REFUSED, _REPEATED),
    "AveragePool": (
        lambda node, _: bool(_stated(node, "count_include_pad")),
        _ATTRIBUTE,
        "does not count padding",
    ),
    "Cast": (_cast_of_other_numbers, _TYPE, "saturates such a Cast, or makes 0 or 1 of it"),
    "DequantizeLinear": (
        _small_integers,
        _TYPE,
        "misreads computed integers of 2 or 4 bits, and ignores signs of constants",
    ),
    "Gather": (_computed_indices, _ATTRIBUTE, _INDICES),
    "GatherElements": (_computed_indices, _ATTRIBUTE, _INDICES),
    "GatherND": (_always, _ATTRIBUTE, "takes indices below 0 for others"),
    "Mish": (_always, _ATTRIBUTE, "is off by more than a hundredth"),
    "OneHot": (
        lambda node, known: node.input[0] not in known.constants,
        _ATTRIBUTE,
        "takes computed indices below 0, and beyond 32 bits, for others",
    ),
    "ScatterElements": (_computed_indices, _ATTRIBUTE, _INDICES),
    "ScatterND": (_computed_indices, _ATTRIBUTE, _INDICES),
    "Mul": (_repeated_for_each, Reason.DEVICE_REFUSED, _REPEATED),
    "Pad": (
        lambda node, _: _stated(node, "mode") == "edge",
        _ATTRIBUTE,
        "pads with other numbers than those at the edge",
    ),
    # It truncates the elements behind the last 128 of a matrix, and others of higher ranks.
    "QuantizeLinear": (
        _quantized_otherwise,
        Reason.UNSUPPORTED_TYPE,
        "truncates what a Cast makes, does not round to 2 or 4 bits, and drops what is dequantized at once",
    ),
    "Softplus": (_always, _ATTRIBUTE, "is off by more than a hundredth"),
}
"""Seen with version 2.7.0, in its emulator."""
_CUDA: _Forms = {
    "Attention": (_scores_that_are_changed, _ATTRIBUTE, "gives scores as they are multiplied, and no others"),
    "Cast": (_cast_without_kernel, _TYPE, "takes this Cast and has no kernel for it, or a wrong one"),
    "CastLike": (_cast_without_kernel, _TYPE, "takes this cast and has no kernel for it, or a wrong one"),
    "GatherBlockQuantized": (_zero_points, _ATTRIBUTE, "is off by much with zero points"),
    "Gelu": (lambda node, known: known.shape(node.input[0]) == (), _RANK, "takes no scalars"),
    "GroupQueryAttention": (_bias_and_sinks, _ATTRIBUTE, "has no attention_bias beside smooth_softmax or head_sink"),
    "HardSigmoid": (_of_double, _TYPE, "computes float64 in float32"),
    "LayerNormalization": (
        _normalized_otherwise,
        _TYPE,
        "computes float64 in float32, and takes a scale for each number that is normalized",
    ),
    "LogSoftmax": (_of_double, _TYPE, "computes float64 in float32"),
    "LRN": (_no_picture, _RANK, "takes pictures of 2 or 3 dimensions"),
    "MatMulNBits": (_small_blocks, _ATTRIBUTE, f"takes blocks of {_LEAST_BLOCK} or more"),
    "RMSNormalization": (_spread_scale, _RANK, "takes a scale for each number that is normalized"),
    "ReduceMax": (_extreme_of_reals, _TYPE, _INFINITIES),
    "ReduceMin": (_extreme_of_reals, _TYPE, _INFINITIES),
    "Shrink": (_unsigned, _TYPE, "makes 0 of what is below 0 and has no sign"),
}
"""Seen with ONNX Runtime 1.31 on an H100 and an H200."""
_WEB_GPU: _Forms = {
    "BatchNormalization": (lambda node, _: bool(_stated(node, "training_mode")), _ATTRIBUTE, "does not train"),
    "LayerNormalization": (_spread_scale, _RANK, "takes a scale for each number that is normalized"),
    "LogSoftmax": (_of_nothing, _RANK, _NOTHING),
    "MatMul": (_of_a_vector, _RANK, "multiplies vectors by matrices wrongly"),
    "MatMulNBits": (_small_blocks, _ATTRIBUTE, f"takes blocks of {_LEAST_BLOCK} or more"),
    "ReduceMax": (_of_nothing, _RANK, _NOTHING),
    "ReduceMin": (_of_nothing, _RANK, _NOTHING),
    "ReduceSum": (_of_nothing, _RANK, _NOTHING),
    "Resize": (lambda node, _: bool(_stated(node, "antialias")), _ATTRIBUTE, "has no antialiasing"),
    "Softmax": (_of_nothing, _RANK, _NOTHING),
}
"""Seen with ONNX Runtime 1.27 on a processor that plays a GPU."""
_FORMS: Mapping[str, _Forms] = {
    "CUDAExecutionProvider": _CUDA,
    "QNNExecutionProvider": _QNN,
    "WebGpuExecutionProvider": _WEB_GPU,
}
_IN_32_BITS = frozenset(("QNNExecutionProvider",))
"""Providers that compute with int64 in 32 bits."""
_MAY_LACK_HALF = frozenset(("WebGpuExecutionProvider",))
"""Providers that take float16 whether the hardware has it or not."""
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def in_half(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes that read or make float16, by position, of a provider that may take it and not have it."""
    if provider not in _MAY_LACK_HALF:
        return {}
    facts, reason = _Known(model), f"{provider} takes float16, which the hardware has not"
    return {
        position: Unsupported(Reason.UNSUPPORTED_DTYPE, reason)
        for position, node in enumerate(model.graph.node)
        if any(facts.dtype(name) == "float16" for name in (*node.input, *node.output))
    }


def computed_otherwise(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes of a model that a provider computes otherwise than ONNX says, or fails to, by position."""
    forms, facts = _FORMS.get(provider, {}), _Known(model)
    refused: dict[int, Unsupported] = {}
    for position, node in enumerate(model.graph.node):
        if provider in _IN_32_BITS and any(
            facts.dtype(name) == "int64" and name not in facts.constants for name in node.input
        ):
            refused[position] = Unsupported(_TYPE, f"{provider} computes int64 in 32 bits")
            continue
        tells, reason, problem = forms.get(node.op_type, (None, Reason.DEVICE_REFUSED, ""))
        if tells is not None and node.domain in _DOMAINS and tells(node, facts):
            refused[position] = Unsupported(reason, f"{provider} {problem}")
    return refused
