"""Losses of classifications."""

from __future__ import annotations

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.node import OnnxNode


@converter("NegativeLogLikelihoodLoss", 12, 13, 22)
def convert_likelihood_loss(context: ConversionContext, node: OnnxNode) -> None:
    """NegativeLogLikelihoodLoss. Source: ONNX NegativeLogLikelihoodLoss-22."""
    context.add("NEGATIVE_LOG_LIKELIHOOD_LOSS", _inputs(context, node), _attributes(node), node.outputs)


@converter("SoftmaxCrossEntropyLoss", 12, 13)
def convert_cross_entropy_loss(context: ConversionContext, node: OnnxNode) -> None:
    """SoftmaxCrossEntropyLoss, with log-probabilities or without. Source: ONNX SoftmaxCrossEntropyLoss-13."""
    context.add("SOFTMAX_CROSS_ENTROPY_LOSS", _inputs(context, node), _attributes(node), node.outputs)


def _inputs(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    weight = (context.operand(node.input(2)),) if node.input(2) else ()
    return context.operand(node.input(0)), context.operand(node.input(1)), *weight


def _attributes(node: OnnxNode) -> dict[str, AttributeValue]:
    """Without `ignore_index` no target is ignored: -1 is none that a target may be."""
    return {"reduction": node.text("reduction", "mean"), "ignore_index": node.integer("ignore_index", -1)}
