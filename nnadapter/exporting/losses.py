"""Losses of classes."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.exporting.registry import exporter
from nnadapter.exporting.writer import NodeWriter, index_of


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
