"""An ONNX sub-graph -> the engine's model, large weights shared: they may be more than protobuf's 2 GiB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from nnadapter.drivers.openvino.engine import core, module
from nnadapter.drivers.openvino.mends import mend
from nnadapter.drivers.openvino.reduced_axes import with_axes_as_input
from nnadapter.drivers.openvino.sharing import shareable
from nnadapter.onnx.building import with_inputs_for
from nnadapter.onnx.references import REFERRED_BYTES, array_of, bytes_of, inlined

_LARGE_BYTES = REFERRED_BYTES
"""Constants from this size on are handed over by memory; smaller ones are written for the engine's reader."""
_SHARED_TYPES = frozenset(
    getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64")
)
"""Data types that the engine's Python interface shares."""


def read(model: onnx.ModelProto) -> Any:
    """Return the engine's model of an ONNX model.

    Large constants go in as inputs, in whose place constants over the arrays' own memory are put.

    Raises:
        Exception: what the package raises for a model that it does not understand.
    """
    large = {tensor.name: tensor for tensor in model.graph.initializer if _is_shared(tensor)}
    light = with_inputs_for(model, large)
    engine_model = core().read_model(inlined(with_axes_as_input(light)).SerializeToString())
    if large:
        _fill(engine_model, large)
    mend(engine_model, {node.op_type for node in model.graph.node})
    return _kept_apart(engine_model)


def copied_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of the constants that the engine does not share."""
    return sum(bytes_of(tensor) for tensor in model.graph.initializer if not _is_shared(tensor))


def _is_shared(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _SHARED_TYPES and bytes_of(tensor) >= _LARGE_BYTES


def _kept_apart(model: Any) -> Any:
    """Put a step between inputs and the outputs that are nothing else than they.

    The engine lets both share one tensor, so that one set for the output takes the input's place, and whatever reads
    the input computes with what happened to lie there.
    """
    operators = module().opset13
    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            order = np.arange(source.get_partial_shape().rank.get_length())
            result.input(0).replace_source_output(operators.transpose(source, order).output(0))
    return model


def _fill(model: Any, tensors: Mapping[str, onnx.TensorProto]) -> None:
    """Put constants in the place of the inputs of their names, as far as the model has kept those."""
    for parameter in model.get_parameters():
        name = next(filter(tensors.get, parameter.output(0).get_names()), None)
        if name is not None:
            constant = module().op.Constant(shareable(array_of(tensors[name])), shared_memory=True)
            for reader in parameter.output(0).get_target_inputs():
                reader.replace_source_output(constant.output(0))
            model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()
