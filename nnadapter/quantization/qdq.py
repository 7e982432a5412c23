"""QuantizeLinear and DequantizeLinear (QDQ) around chosen nodes of a float model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from nnadapter.drivers.capability import Precision
from nnadapter.errors import InvalidOptionError, near_names
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied, initializer_of
from nnadapter.onnx.graphs import captured_names
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.quantization.calibration import LARGEST, RANGES, Distribution, with_outputs
from nnadapter.quantization.products import LEAST_OPSET, PRODUCTS, WIDE_OPSET, FloatModel, Product, along, flattened
from nnadapter.records import dataclass, replace
from nnadapter.session.session import InferenceSession

WAYS = (Precision.W8A8, Precision.W8A16, Precision.W8, Precision.W4A16)
WEIGHTS_ONLY = (Precision.W8, Precision.W4A16)
_BLOCK = 32
_MOST_BIAS = 1 << 30
_SHIFT_SAMPLES = 8
_AXES_AS_INPUT = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Way to quantize a node. Raises InvalidOptionError for invalid values."""

    precision: Precision = Precision.W8A8
    ranges: str = "minmax"
    per_channel: bool = True
    symmetric: bool = False
    reduced: bool = False
    """Weights use 7 of 8 bits, so that sums of two products fit 16 bits on x86 without VNNI."""
    results: bool = True
    """Results of convolutions, or of the activation function that follows, are quantized as well.

    Most engines compute on integers only if results are quantized. Results of matrix products also require
    `every_operator`.
    """
    smooth: float = 0.0
    """SmoothQuant's alpha for matrix products, 0 to 1; 0 for none. Source: Xiao et al., SmoothQuant, 2023."""
    every_operator: bool = False

    def __post_init__(self) -> None:
        if self.precision not in WAYS:
            names = [precision.value for precision in WAYS]
            raise InvalidOptionError(
                f"precision must be one of {', '.join(names)}, got {self.precision!r}"
                f"{near_names(self.precision, names, '; ')}"
            )
        object.__setattr__(self, "precision", Precision(self.precision))
        if self.ranges not in RANGES:
            raise InvalidOptionError(
                f"ranges must be one of {', '.join(RANGES)}, got {self.ranges!r}{near_names(self.ranges, RANGES, '; ')}"
            )
        if isinstance(self.smooth, bool) or not isinstance(self.smooth, (int, float)) or not 0 <= self.smooth <= 1:
            raise InvalidOptionError(f"smooth must be a number from 0 to 1, got {self.smooth!r}")

    @property
    def quantizes_activations(self) -> bool:
        return self.precision not in WEIGHTS_ONLY

    @property
    def bits(self) -> int:
        return 16 if self.precision is Precision.W8A16 else 8

    @property
    def opset(self) -> int:
        return WIDE_OPSET if self.precision in (Precision.W8A16, Precision.W4A16) else LEAST_OPSET

    def __str__(self) -> str:
        details = {
            self.ranges: self.quantizes_activations and self.ranges != "minmax",
            "per tensor": not self.per_channel,
            "symmetric": self.symmetric,
            "7-bit weights": self.reduced,
            "float results": self.quantizes_activations and not self.results,
            "smooth": self.smooth,
            "of every operator": self.every_operator,
        }
        return " ".join([self.precision.value, *(text for text, is_shown in details.items() if is_shown)])


class Scaled(NamedTuple):
    """Integer type with scale and zero point."""

    dtype: np.dtype[Any]
    scale: float
    zero_point: int


def activation_scale(way: Way, values: Distribution, *, signed: bool = False) -> Scaled:
    """Return the integer type, scale and zero point of an activation.

    `signed` selects signed integers with a symmetric range, for the second operand of a product.
    """
    low, high = values.range(way.ranges, 1 << way.bits)
    return _scaled(low, high, way.bits, signed=signed, symmetric=way.symmetric)


def _scaled(low: float, high: float, bits: int, *, signed: bool, symmetric: bool) -> Scaled:
    dtype = np.dtype(f"{'int' if signed else 'uint'}{bits}")
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if signed or symmetric:
        peak = max(-low, high)
        scale = float(_positive(np.asarray(peak / (most if signed else (most - least) // 2), np.float32)))
        return Scaled(dtype, scale, 0 if signed else (most + 1) // 2)
    scale = float(_positive(np.asarray((high - low) / (most - least), np.float32)))
    return Scaled(dtype, scale, int(np.clip(np.round(least - low / scale), least, most)))


def _positive(scales: Array) -> Array:
    return np.where(scales >= np.finfo(np.float32).tiny, scales, 1.0).astype(np.float32)


_ONE_OPERAND = ("Clip", "Dropout", "Pad", "Resize", "RoiAlign", "Upsample")
"""Ops with one operand to quantize; the further operands are limits, sizes or scales."""


class QdqWriter:
    """Nodes and initializers of a model with quantized operands."""

    def __init__(
        self, model: FloatModel, ways: Mapping[str, Way], values: Mapping[str, Distribution],
        bias_shifts: Mapping[str, Array], fused: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.model, self.ways, self.values, self.bias_shifts = model, ways, values, bias_shifts
        self._fused = fused
        self.products = {
            product.node: product
            for product in model.products
            if product.node in ways
            and (not ways[product.node].quantizes_activations or values.keys() >= {*product.activations})
        }
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        inputs = (value.name for value in model.model.graph.input)
        self._used_names = {*model.producers, *model.constants, *inputs}
        self._smoothed = self._smoothing()

    def _smoothing(self) -> dict[str, Array]:
        """Return the divisors of activations. Source: SmoothQuant, equation 4."""
        groups: dict[str, list[Product]] = {}
        for product in self.products.values():
            way = self.ways[product.node]
            if way.smooth and way.quantizes_activations and product.weight and product.takes_divisors:
                groups.setdefault(product.activations[0], []).append(product)
        found = {}
        for name, products in groups.items():
            ends, share = self.values[name].channel_ends, self.ways[products[0].node].smooth
            weights = [flattened(self.model.array(product.weight), product.reduced_axis) for product in products]
            if ends is None or any(len(weight) != ends.shape[1] for weight in weights):
                continue
            peaks = np.abs(ends).max(axis=0)
            heights = np.maximum.reduce([np.abs(weight).max(axis=1) for weight in weights])
            with np.errstate(divide="ignore"):
                divisors = peaks**share / np.maximum(heights, 1e-8) ** (1 - share)
            divisors = np.where((peaks > 0) & np.isfinite(divisors), np.clip(divisors, 1e-4, 1e4), 1.0)
            found[name] = divisors.astype(np.float32)
        return found

    def write(self, node: onnx.NodeProto) -> None:
        way, product = self.ways.get(node.name), self.products.get(node.name)
        if way is None or (product is None and node.op_type in PRODUCTS):
            self.nodes.append(node)
            return
        changed = copied(node)
        if product is None:
            self._write_other(changed, way)
        else:
            self.write_product(changed, product, way)
        self.nodes.append(changed)

    def write_product(self, node: onnx.NodeProto, product: Product, way: Way) -> None:
        scale: float | None = None
        divisors = self._smoothed.get(product.activations[0]) if way.smooth and product.weight else None
        for position, name in enumerate(product.activations if way.quantizes_activations else ()):
            values, source = self.values[name], name
            if divisors is not None:
                source, values = self._divided(name, divisors), _divided_values(values, divisors)
            smooth_way = way if divisors is None else replace(way, ranges="minmax")  # only the ends are known
            scaled = activation_scale(smooth_way, values, signed=position == 1)
            node.input[position] = self.quantized(source, scaled)
            scale = scaled.scale
        if not product.weight:
            return
        weight = self.model.array(product.weight)
        if divisors is not None:
            weight = weight * along(divisors, product.reduced_axis, weight.ndim)
        bias = self._bias(product)
        if way.precision is Precision.W4A16:
            node.input[1] = self._four_bits(product, weight)
            scales = None
        else:
            node.input[1], scales = self._eight_bits(product, weight, way, scale, bias)
        if bias is not None:
            del node.input[2:]
            node.input.append(self._written_bias(product, bias, scale, scales))

    def quantized(self, name: str, scaled: Scaled) -> str:
        """Quantize and dequantize a float value, and return the result's name; equal results are shared."""
        key = ("activation", name, scaled)
        if key not in self._made:
            scale = self._constant(f"{name}_scale", np.array(scaled.scale, np.float32))
            zero_point = self._constant(f"{name}_zero_point", np.array(scaled.zero_point, scaled.dtype))
            integers, reals = self._name(f"{name}_QuantizeLinear_Output"), self._name(f"{name}_DequantizeLinear_Output")
            self._node("QuantizeLinear", [name, scale, zero_point], integers)
            self._node("DequantizeLinear", [integers, scale, zero_point], reals)
            self._made[key] = reals
        return self._made[key]

    def mean(self, name: str, result: str, axes: Sequence[int]) -> None:
        if self.model.opset < _AXES_AS_INPUT:
            self._node("ReduceMean", [name], result, axes=axes, keepdims=0)
        else:
            self._node("ReduceMean", [name, self._constant(f"{name}_axes", np.array(axes))], result, keepdims=0)

    def requantize(self, position: int, name: str, scaled: Scaled) -> None:
        """Quantize and dequantize output `position` of the last node. The result gets the output's `name`."""
        real = self._name(f"{name}_float")
        self.nodes[-1] = copied(self.nodes[-1])  # it may belong to the float model
        self.nodes[-1].output[position] = real
        self.quantized(real, scaled)
        self.nodes[-1].output[0] = name
        self._made[("activation", name, scaled)] = name

    def _write_other(self, node: onnx.NodeProto, way: Way) -> None:
        if not way.quantizes_activations:
            return
        for position, name in enumerate(node.input):
            if name in self._fused or (position and node.op_type in _ONE_OPERAND):
                continue
            if name in self.values:
                node.input[position] = self.quantized(name, activation_scale(way, self.values[name]))
            elif name in self.model.constants and self.model.constants[name].data_type == TensorProto.FLOAT:
                array = self.model.array(name)
                if not (np.abs(array) < LARGEST).all():
                    continue
                if array.size > 1 or node.op_type in ("Add", "Sub", "Mul", "Div"):
                    node.input[position] = self._quantized_constant(name, array, way)

    def _quantized_constant(self, name: str, array: Array, way: Way) -> str:
        key = ("constant", name, way.precision)
        if key not in self._made:
            low, high = min(float(array.min(initial=0)), 0.0), max(float(array.max(initial=0)), 0.0)
            scaled = _scaled(low, high, way.bits, signed=False, symmetric=False)
            limits = np.iinfo(scaled.dtype)
            integers = np.clip(np.round(array / scaled.scale) + scaled.zero_point, limits.min, limits.max)
            self._made[key] = self._dequantized(
                name, integers.astype(scaled.dtype), np.float32(scaled.scale), np.array(scaled.zero_point, scaled.dtype)
            )
        return self._made[key]

    def _eight_bits(
        self, product: Product, weight: Array, way: Way, scale: float | None, bias: Array | None
    ) -> tuple[str, Array]:
        axis = product.channel_axis if way.per_channel else None
        rows = weight.reshape(1, -1) if axis is None else flattened(weight, axis)
        most = 63 if way.reduced else 127
        scales = np.abs(rows).max(axis=1, initial=0).astype(np.float64) / most
        if bias is not None and scale is not None:
            least = np.abs(bias).astype(np.float64) / (scale * _MOST_BIAS)  # otherwise the bias exceeds 32 bits
            scales = np.maximum(scales, least if axis is not None else least.max(initial=0))
        scales = _positive(scales)
        divisors = scales if axis is None else along(scales, axis, weight.ndim)
        integers = np.clip(np.round(weight / divisors), -most, most).astype(np.int8)
        key = ("weight", product.weight, integers.tobytes()) if integers.size < 1 << 16 else ("weight", product.node)
        if key not in self._made:
            stored = scales if axis is not None else scales[0]
            self._made[key] = self._dequantized(product.weight, integers, stored, np.zeros_like(stored, np.int8), axis)
        return self._made[key], scales

    def _four_bits(self, product: Product, weight: Array) -> str:
        length, axis = weight.shape[product.reduced_axis], product.reduced_axis
        block = _BLOCK if weight.ndim == 2 and length % _BLOCK == 0 else length
        moved = np.moveaxis(weight, axis, -1)
        blocks = moved.reshape(*moved.shape[:-1], -1, block)
        scales = _positive(np.abs(blocks).max(axis=-1) / 7)
        integers = np.clip(np.round(blocks / scales[..., None]), -8, 7).reshape(moved.shape)
        integers, scales = np.moveaxis(integers, -1, axis), np.ascontiguousarray(np.moveaxis(scales, -1, axis))
        nibbles = np.ascontiguousarray(integers).astype(ml_dtypes.int4)
        return self._dequantized(product.weight, nibbles, scales, None, axis, block)

    def _bias(self, product: Product) -> Array | None:
        shift = self.bias_shifts.get(product.node)
        if not product.takes_bias or (not product.bias and shift is None):
            return None
        bias = self.model.array(product.bias) if product.bias else np.zeros_like(shift)
        return bias if shift is None else (bias + shift).astype(np.float32)

    def _written_bias(self, product: Product, bias: Array, scale: float | None, scales: Array | None) -> str:
        if scale is None or scales is None:
            return self._constant(f"{product.node}_bias", bias)
        steps = _positive((np.float32(scale) * scales).astype(np.float32))
        limits = np.iinfo(np.int32)
        integers = np.clip(np.round(bias.astype(np.float64) / steps), limits.min, limits.max).astype(np.int32)
        axis, stored = (0, steps) if len(steps) > 1 else (None, steps[0])
        base = product.bias or f"{product.node}_bias"
        return self._dequantized(base, integers, stored, np.zeros_like(stored, np.int32), axis)

    def _divided(self, name: str, divisors: Array) -> str:
        key = ("divided", name)
        if key not in self._made:
            factors = self._constant(f"{name}_smoothing", 1 / divisors)
            self._made[key] = self._name(f"{name}_smoothed")
            self._node("Mul", [name, factors], self._made[key])
        return self._made[key]

    def _dequantized(
        self, base: str, integers: Array, scale: Any, zero_point: Any, axis: int | None = None, block: int = 0
    ) -> str:
        names = [self._constant(f"{base}_quantized", integers), self._constant(f"{base}_scale", np.asarray(scale))]
        names += [] if zero_point is None else [self._constant(f"{base}_zero_point", np.asarray(zero_point))]
        reals = self._name(f"{base}_DequantizeLinear_Output")
        attributes = {} if axis is None else {"axis": axis}
        self._node("DequantizeLinear", names, reals, **attributes, **({"block_size": block} if block else {}))
        return reals

    def _node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))

    def _constant(self, base: str, array: Array) -> str:
        name = self._name(base)
        self.initializers[name] = initializer_of(name, np.ascontiguousarray(array) if array.ndim else array)
        return name

    def _name(self, base: str) -> str:
        name, number = base, 1
        while name in self._used_names:
            number += 1
            name = f"{base}_{number}"
        self._used_names.add(name)
        return name


def _divided_values(values: Distribution, divisors: Array) -> Distribution:
    assert values.channel_ends is not None, "smoothing needs the ends of channels"
    ends = values.channel_ends / divisors
    low, high = float(ends[0].min()), float(ends[1].max())
    edges = np.linspace(min(low, 0.0), max(high, 0.0), 3)
    return Distribution(smallest=low, largest=high, counts=np.ones(2, np.int64), edges=edges, channel_ends=ends)


def quantize_nodes(
    model: FloatModel, ways: Mapping[str, Way], values: Mapping[str, Distribution], bias_shifts: Mapping[str, Array]
) -> onnx.ModelProto:
    """Return a QDQ model in which the nodes in `ways` compute on integers."""
    wide = _widened(model, ways)
    results = quantized_results(wide, ways)
    shared = _shared(wide, ways, values)
    writer = QdqWriter(wide, ways, shared, bias_shifts, fused=fused_results(wide, results))
    outputs = {value.name for value in wide.model.graph.output}
    requantized: dict[str, str] = {}
    for node in wide.model.graph.node:
        writer.write(node if node.name in ways else _reading(node, requantized))
        for position, name in enumerate(node.output):
            way = results.get(name)
            if way is not None and name in shared:
                scaled = activation_scale(way, shared[name])
                if name in outputs:
                    writer.requantize(position, name, scaled)
                else:
                    requantized[name] = writer.quantized(name, scaled)
    return _assembled(wide.model, writer.nodes, writer.initializers)


_ACTIVATION_FUNCTIONS = ("Relu", "Clip")


def quantized_results(model: FloatModel, ways: Mapping[str, Way]) -> dict[str, Way]:
    """Return the results to quantize. If an activation function follows a node, its result replaces the node's."""
    results: dict[str, Way] = {}
    outputs = {value.name for value in model.model.graph.output}
    every = not ways.keys() <= {product.node for product in model.products}
    for node in model.model.graph.node:
        way = ways.get(node.name)
        if way is None or not way.results or not way.quantizes_activations:
            continue
        if not every and node.op_type in ("Gemm", "MatMul"):
            continue
        for name in filter(None, node.output):
            readers = model.readers.get(name, [])
            is_fused = node.op_type in (*PRODUCTS, "Add") and len(readers) == 1 and name not in outputs
            is_fused = is_fused and readers[0].op_type in _ACTIVATION_FUNCTIONS
            results[readers[0].output[0] if is_fused else name] = way
    return results


def fused_results(model: FloatModel, results: Mapping[str, Way]) -> frozenset[str]:
    """Return the operands of activation functions that are fused with the node before them."""
    return frozenset(
        node.input[0]
        for node in model.model.graph.node
        if node.op_type in _ACTIVATION_FUNCTIONS and node.output[0] in results and node.input[0] not in results
    )


_MOVERS = (
    "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


def _shared(model: FloatModel, ways: Mapping[str, Way], values: Mapping[str, Distribution]) -> dict[str, Distribution]:
    """Return `values`, but give each result of an op that only moves data the distribution of its source."""
    shared = dict(values)
    for node in model.model.graph.node:
        if node.op_type in _MOVERS and node.name in ways and node.input[0] in shared:
            shared.update((name, shared[node.input[0]]) for name in node.output if name in shared)
    return shared


def _widened(model: FloatModel, ways: Mapping[str, Way]) -> FloatModel:
    return model.at_opset(max((way.opset for way in ways.values()), default=LEAST_OPSET))


def _reading(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    if names.keys().isdisjoint(node.input):
        return node
    changed = copied(node)
    changed.input[:] = [names.get(name, name) for name in node.input]
    return changed


def _assembled(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], initializers: Mapping[str, TensorProto]
) -> onnx.ModelProto:
    assembled = copied(model)
    graph = assembled.graph
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in chain(node.input, captured_names(node))}
    read.update(value.name for value in chain(graph.output, graph.input))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    graph.initializer.extend(tensor for name, tensor in initializers.items() if name in read)
    return assembled


def bias_shifts(
    model: FloatModel, ways: Mapping[str, Way], values: Mapping[str, Distribution], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """Return a correction of the bias per product that keeps the mean of each channel.

    Products are computed with and without quantization. Source: Nagel et al., Data-Free Quantization, 2019, section
    4.2, here with data.
    """
    wide = _widened(model, ways)
    writer = QdqWriter(wide, ways, values, {})
    means: dict[str, str] = {}
    for node in wide.model.graph.node:
        writer.nodes.append(node)
        product = writer.products.get(node.name)
        if product is None or not product.takes_bias:
            continue
        twin = copied(node)
        twin.name = twin.output[0] = f"{node.output[0]}_twin"
        writer.write_product(twin, product, ways[node.name])
        writer.nodes.append(twin)
        difference = f"{node.output[0]}_difference"
        means[node.name] = f"{difference}_mean"
        writer.nodes.append(helper.make_node("Sub", [node.output[0], twin.output[0]], [difference], name=difference))
        rank = wide.array(product.weight).ndim  # also the rank of the result; axis 1 has the channels
        writer.mean(difference, means[node.name], [axis for axis in range(rank) if axis != 1])
    if not means:
        return {}
    doubled = _assembled(wide.model, writer.nodes, writer.initializers)
    few = feeds[:: -(-len(feeds) // _SHIFT_SAMPLES)]
    sums: dict[str, Array] = {}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # integer kernels saturate on some processors
    with InferenceSession(with_outputs(doubled, means.values()), options, devices="cpu") as session:
        for feed in few:
            for name, mean in zip(means, session.run([*means.values()], feed), strict=True):
                sums[name] = sums.get(name, 0.0) + mean.astype(np.float64)
    return {name: (total / len(few)).astype(np.float32) for name, total in sums.items()}
