"""An ONNX sub-graph -> the engine's model, also beyond the 2 GiB that protobuf writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from nnadapter.drivers.openvino.engine import core, module
from nnadapter.drivers.openvino.quantization import QUANTIZING
from nnadapter.drivers.openvino.reals import keep_real
from nnadapter.onnx.building import with_inputs_for

_LARGE_BYTES = 1 << 20
"""Constants from this size on are handed over by memory where a model is too large to be written."""
_WRITTEN_BYTES = 1 << 30
"""Models up to this size are written for the engine's reader; protobuf's own limit is 2 GiB."""


def read(model: onnx.ModelProto) -> Any:
    """Return the engine's model of an ONNX model.

    Large constants of a very large model go in as inputs, in whose place constants over the arrays' memory are put.

    Raises:
        Exception: what the package raises for a model that it does not understand.
    """
    large = [tensor for tensor in model.graph.initializer if tensor.ByteSize() >= _LARGE_BYTES]
    if sum(tensor.ByteSize() for tensor in large) < _WRITTEN_BYTES:
        return _mended(core().read_model(model.SerializeToString()), model)
    engine_model = core().read_model(with_inputs_for(model, {tensor.name for tensor in large}).SerializeToString())
    for tensor in large:
        _fill(engine_model, tensor)
    engine_model.validate_nodes_and_infer_types()
    return _mended(engine_model, model)


def _mended(engine_model: Any, model: onnx.ModelProto) -> Any:
    if any(node.op_type in QUANTIZING for node in model.graph.node):
        keep_real(engine_model)
    return _kept_apart(engine_model)


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


def _fill(model: Any, tensor: onnx.TensorProto) -> None:
    """Put a constant in the place of the input of its name, if the model has kept that."""
    parameter = next((each for each in model.get_parameters() if tensor.name in each.output(0).get_names()), None)
    if parameter is None:
        return
    constant = module().op.Constant(numpy_helper.to_array(tensor), shared_memory=False)
    for reader in parameter.output(0).get_target_inputs():
        reader.replace_source_output(constant.output(0))
    model.remove_parameter(parameter)
