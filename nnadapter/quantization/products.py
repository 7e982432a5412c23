"""Float models to quantize: optimized, with their convolutions and matrix products."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import version_converter

from nnadapter.errors import InvalidModelError, InvalidOptionError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied
from nnadapter.onnx.files import contents_of, load_model
from nnadapter.onnx.graphs import node_names, opsets_of, subgraphs
from nnadapter.onnx.references import array_of
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.records import dataclass

if TYPE_CHECKING:
    from nnadapter.session.session import ModelSource

LEAST_OPSET = 13
"""First opset with scales per channel."""
WIDE_OPSET = 21
"""First opset with 16-bit and 4-bit integers, and blocks."""
_FIRST_IR_WITH_CONSTANTS = 4
"""First ONNX IR version with initializers that are not inputs."""
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Convolution or matrix product with float32 operands."""

    node: str
    op_type: str
    activations: tuple[str, ...]
    """Operands that are computed during a run."""
    weight: str = ""
    """Constant operand; empty if there is none."""
    channel_axis: int | None = None
    """Axis of the weight with the output's channels; None if it has none."""
    reduced_axis: int = 0
    """Axis of the weight that is summed over."""
    input_axis: int = -1
    """Axis of the first activation that is summed over."""
    bias: str = ""
    """Constant bias with an element per channel, if any."""
    takes_bias: bool = False
    """True if the node has a constant bias or can get one."""

    @property
    def takes_divisors(self) -> bool:
        """True if SmoothQuant can divide the last axis of the activation."""
        return self.op_type == "MatMul" or (self.op_type == "Gemm" and self.input_axis == 1)


@dataclass(frozen=True, eq=False)
class FloatModel:
    """Model to quantize, with unique node names and weights in memory."""

    model: onnx.ModelProto

    @cached_property
    def constants(self) -> Mapping[str, onnx.TensorProto]:
        inputs = {value.name for value in self.model.graph.input}
        return {tensor.name: tensor for tensor in self.model.graph.initializer if tensor.name not in inputs}

    @cached_property
    def readers(self) -> Mapping[str, list[onnx.NodeProto]]:
        """Value -> nodes that read it, outside subgraphs."""
        found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.model.graph.node:
            for name in dict.fromkeys(node.input):
                found[name].append(node)
        return found

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output if name}

    @cached_property
    def dtypes(self) -> Mapping[str, int]:
        """Value -> inferred ONNX element type."""
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model, data_prop=True)
        except Exception:  # noqa: BLE001  onnx raises RuntimeError subclasses of its own
            inferred = self.model
        values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
        return {value.name: value.type.tensor_type.elem_type for value in values}

    @cached_property
    def sizes(self) -> frozenset[str]:
        """Values computed only from tensor shapes."""
        found: set[str] = set()
        for node in self.model.graph.node:
            operands = [name for name in node.input if name and name not in self.constants]
            if node.op_type in ("Shape", "Size") or (operands and found.issuperset(operands)):
                found.update(node.output)
        return frozenset(found)

    @cached_property
    def opset(self) -> int:
        return opsets_of(self.model.opset_import)[""]

    @cached_property
    def products(self) -> tuple[Product, ...]:
        return tuple(filter(None, map(self._product, self.model.graph.node)))

    def array(self, name: str) -> Array:
        return array_of(self.constants[name])

    def at_opset(self, opset: int) -> FloatModel:
        """Return the model at `opset` or newer. Raises InvalidModelError."""
        if self.opset >= opset:
            return self
        try:
            converted = version_converter.convert_version(self.model, opset)
        except Exception as error:  # onnx raises RuntimeError subclasses of its own
            raise InvalidModelError(
                f"the model of opset {self.opset} cannot be converted to opset {opset}, which its quantization needs: "
                f"{error}; export it with opset {opset}"
            ) from error
        return FloatModel(_named(converted))

    def _product(self, node: onnx.NodeProto) -> Product | None:
        if node.op_type not in PRODUCTS or node.domain not in ("", "ai.onnx"):
            return None
        left, right, *rest = node.input
        if left in self.constants and right in self.constants:
            return None
        codes = (self.dtypes.get(name, onnx.TensorProto.FLOAT) for name in (left, right) if not self._is_weight(name))
        if any(code != onnx.TensorProto.FLOAT for code in codes):
            return None
        if node.op_type == "MatMul":
            return self._matrix_product(node.name, left, right)
        if not self._is_weight(right):
            return None
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Gemm":
            is_transposed = bool(attributes.get("transB", 0))
            bias = self._bias(rest, self.array(right).shape[0 if is_transposed else 1])
            return Product(
                node=node.name, op_type="Gemm", activations=(left,), weight=right,
                channel_axis=0 if is_transposed else 1, reduced_axis=1 if is_transposed else 0,
                input_axis=0 if attributes.get("transA", 0) else 1, bias=bias or "",
                takes_bias=bias is not None and {attributes.get(name, 1.0) for name in ("alpha", "beta")} == {1.0},
            )  # fmt: skip
        is_plain, groups = node.op_type == "Conv", attributes.get("group", 1)
        bias = self._bias(rest, self.array(right).shape[0] if is_plain else self.array(right).shape[1] * groups)
        return Product(
            node=node.name, op_type=node.op_type, activations=(left,), weight=right,
            channel_axis=0 if is_plain else 1 if groups == 1 else None, reduced_axis=1 if is_plain else 0,
            input_axis=1, bias=bias or "", takes_bias=bias is not None,
        )  # fmt: skip

    def _bias(self, rest: Sequence[str], channels: int) -> str | None:
        """Return the name of the constant bias; empty if there is none, None if it does not fit."""
        name = rest[0] if rest else ""
        fits = not name or (self._is_weight(name) and self.array(name).shape == (channels,))
        return name if fits else None

    def _matrix_product(self, name: str, left: str, right: str) -> Product | None:
        if not self._is_weight(right):
            return None if left in self.constants else Product(node=name, op_type="MatMul", activations=(left, right))
        rank = self.array(right).ndim
        if rank < 2:
            return None
        return Product(
            node=name, op_type="MatMul", activations=(left,), weight=right,
            channel_axis=1 if rank == 2 else None, reduced_axis=rank - 2,
        )  # fmt: skip

    def _is_weight(self, name: str) -> bool:
        tensor = self.constants.get(name)
        return tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT


def read_float_model(source: ModelSource) -> FloatModel:
    """Return a model with folded constants and batch normalizations, at least of opset 13.

    ONNX Runtime's basic optimizations are skipped if they fail or add operators of other domains.

    Raises:
        InvalidOptionError: the model is compiled.
        InvalidModelError, ModelFileError: the model cannot be read or converted, or is quantized already.
    """
    kind = kind_of(source)
    if kind is SourceKind.COMPILED:
        raise InvalidOptionError("a compiled model cannot be quantized; give the original model")
    if kind is SourceKind.MODULE:
        source = optional_part("torch_model_as_onnx")(source)
    loaded = load_model(optional_part("paddle_model_as_onnx")(source, Options()))
    if loaded.ir_version < _FIRST_IR_WITH_CONSTANTS:
        initialized = {tensor.name for tensor in loaded.graph.initializer}
        inputs = [value for value in loaded.graph.input if value.name not in initialized]
        del loaded.graph.input[:]
        loaded.graph.input.extend(inputs)
        loaded.ir_version = _FIRST_IR_WITH_CONSTANTS
    for node in _all_nodes(loaded.graph):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"):
            raise InvalidModelError(
                f"the model is quantized already: it has {node.op_type} {node.name!r}; give its float model"
            )
    with suppress(InvalidModelError):  # beyond 2 GiB it stays as it is
        loaded = _optimized(loaded)
    inlined = load_model(loaded, external_data=False)
    return FloatModel(_named(inlined)).at_opset(LEAST_OPSET)


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    contents = contents_of(model)
    domains = {node.domain for node in _all_nodes(model.graph)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        try:
            onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
            optimized = onnx.load_model(path)
        except Exception:  # noqa: BLE001  ONNX Runtime raises exceptions of its own; the session reports invalid models
            return model
    used = {node.domain for node in _all_nodes(optimized.graph)} | {"", "ai.onnx"}
    imports = [entry for entry in optimized.opset_import if entry.domain in used]
    del optimized.opset_import[:]
    optimized.opset_import.extend(imports)
    return model if used - domains - {"", "ai.onnx"} else optimized


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with unique node names, without the suffix that ONNX Runtime adds to a Gemm."""
    named = copied(model)
    names = node_names(named)
    for node, name in zip(named.graph.node, names, strict=True):
        original = name.removesuffix("/MatMulAddFusion")
        node.name = name if original in names else original
    return named


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _all_nodes(inner)


def flattened(array: Array, axis: int) -> Array:
    """Return an array as [channels, others]."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector in a shape that broadcasts along an axis."""
    return vector.reshape([-1 if at == axis else 1 for at in range(rank)])
