"""Exporters of normalizations, and of losses of classifications."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.exporting.writer import NodeWriter, exporter, index_of
from nnadapter.ir.operand import DataType

_ONNX_EPSILON = 1e-9
"""What MeanVarianceNormalization-13 adds to the deviation; it has no attribute for it."""


@exporter("BATCH_NORMALIZATION")
def export_batch_normalization(write: NodeWriter) -> str:
    """BATCH_NORMALIZATION. Source: ONNX BatchNormalization-15."""
    return write.node("BatchNormalization", *write.inputs, epsilon=write.operation.epsilon)


@exporter("LAYER_NORMALIZATION")
def export_layer_normalization(write: NodeWriter) -> str:
    """LAYER_NORMALIZATION. Source: ONNX LayerNormalization-17."""
    of = write.operation
    return write.node("LayerNormalization", *write.inputs, axis=of.axis, epsilon=of.epsilon)


@exporter("RMS_NORMALIZATION")
def export_rms_normalization(write: NodeWriter) -> str:
    """RMS_NORMALIZATION; in float32 where the scale is of another data type, whose body ONNX has wrong.

    Source: ONNX RMSNormalization-23.
    """
    of, dtype, inputs = write.operation, write.result.type.dtype, write.inputs
    if dtype is not write.type.dtype:
        inputs = tuple(write.cast(input_name, DataType.FLOAT32) for input_name in inputs)
    return write.cast(write.node("RMSNormalization", *inputs, axis=of.axis, epsilon=of.epsilon), dtype)


@exporter("INSTANCE_NORMALIZATION")
def export_instance_normalization(write: NodeWriter) -> str:
    """INSTANCE_NORMALIZATION. Source: ONNX InstanceNormalization-22."""
    return write.node("InstanceNormalization", *write.inputs, epsilon=write.operation.epsilon)


@exporter("LOCAL_RESPONSE_NORMALIZATION")
def export_local_response_normalization(write: NodeWriter) -> str:
    """LOCAL_RESPONSE_NORMALIZATION. Source: ONNX LRN-13."""
    of = write.operation
    return write.node("LRN", write.inputs[0], size=of.size, alpha=of.alpha, beta=of.beta, bias=of.bias)


@exporter("MEAN_VARIANCE_NORMALIZATION")
def export_mean_variance_normalization(write: NodeWriter) -> str:
    """MEAN_VARIANCE_NORMALIZATION; with another epsilon than ONNX's spelled out, and where its body is not float32.

    Source: ONNX MeanVarianceNormalization-13.
    """
    of, x = write.operation, write.inputs[0]
    if of.epsilon == _ONNX_EPSILON and write.type.dtype is DataType.FLOAT32:
        return write.node("MeanVarianceNormalization", x, axes=of.axes)
    axes = write.integers(*of.axes)
    centered = write.node("Sub", x, write.node("ReduceMean", x, axes))
    variance = write.node("ReduceMean", write.node("Mul", centered, centered), axes)
    deviation = write.node("Add", write.node("Sqrt", variance), write.number(of.epsilon, write.type.dtype))
    return write.node("Div", centered, deviation)


@exporter("NEGATIVE_LOG_LIKELIHOOD_LOSS")
def export_likelihood(write: NodeWriter) -> str:
    """NEGATIVE_LOG_LIKELIHOOD_LOSS. Source: ONNX NegativeLogLikelihoodLoss-22."""
    x, target, weight = write.inputs
    of = write.operation
    return write.node(
        "NegativeLogLikelihoodLoss",
        x,
        index_of(write, target),
        weight,
        reduction=of.reduction,
        ignore_index=of.ignore_index,
    )


@exporter("SOFTMAX_CROSS_ENTROPY_LOSS")
def export_cross_entropy(write: NodeWriter) -> Sequence[str]:
    """SOFTMAX_CROSS_ENTROPY_LOSS. Source: ONNX SoftmaxCrossEntropyLoss-13."""
    x, target, weight = write.inputs
    of = write.operation
    return write.nodes(
        "SoftmaxCrossEntropyLoss",
        (x, index_of(write, target), weight),
        2,
        reduction=of.reduction,
        ignore_index=of.ignore_index,
    )
