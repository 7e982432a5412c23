"""The meanings of losses of classifications."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, tensor

_ROLES = {
    "target": "[N, d1, …]: the class of every place, from 0 to C - 1, or `ignore_index`.",
    "weight": "[C]: what each class counts; none: 1 each.",
}
_ATTRIBUTES = {
    "reduction": "`none`: a loss for every place. `sum`: their sum. `mean`: their sum by the sum of the weights.",
    "ignore_index": "Places with this target count for nothing; -1, the default, is no class.",
}
_OUTPUT = "The data type of `input`; [N, d1, …] with reduction `none`, else a scalar."
_TRAPS = (
    "`mean` divides by the sum of the weights of the targets, not by their number.",
    "If every place is ignored, the mean is NaN.",
    "Classes are axis 1, not the last one.",
)
_TARGETS = tensor([0, 2, -1])

MEANINGS: Mapping[str, OperationDoc] = {
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": OperationDoc(
        summary="How unlikely the right classes are, from logarithms of probabilities.",
        formula="loss[n, d…] = -weight[t] * input[n, t, d…] with t = target[n, d…]; 0 where t = ignore_index\n"
        "output = loss, its sum, or its sum / sum of weight[t]",
        inputs={"input": "[N, C, d1, …]: logarithms of probabilities.", **_ROLES},
        attributes=_ATTRIBUTES,
        outputs={"output": _OUTPUT},
        example=Example((tensor([[-1.0, -2.0, -3.0]] * 3), _TARGETS, tensor([1.0, 1.0, 3.0]))),
        traps=(*_TRAPS, "It takes no logarithm: the input is one."),
        flops="4 for each target",
    ),
    "SOFTMAX_CROSS_ENTROPY_LOSS": OperationDoc(
        summary="How unlikely the right classes are, from scores.",
        formula="log_probabilities[n, c, d…] = input[n, c, d…] - log(sum over k of exp(input[n, k, d…]))\n"
        "output as NEGATIVE_LOG_LIKELIHOOD_LOSS of log_probabilities",
        inputs={"input": "[N, C, d1, …]: scores.", **_ROLES},
        attributes=_ATTRIBUTES,
        outputs={"output": _OUTPUT, "log_probabilities": "Data type and dimensions of `input`."},
        example=Example((tensor([[1.0, 2.0, 3.0]] * 3), _TARGETS), {"reduction": "none"}),
        traps=(
            *_TRAPS,
            "Subtract the maximum before exp.",
            "There are always two outputs.",
        ),
    ),
}
"""By operation."""
