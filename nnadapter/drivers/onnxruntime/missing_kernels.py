"""Forms of ONNX Runtime's own operators that its CPU loads and does not compute: each run of them fails.

Source: ONNX Runtime's `contrib_ops/cpu/bert/multihead_attention.cc`; seen with ONNX Runtime 1.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from nnadapter.onnx.further_schemas import MICROSOFT
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

if TYPE_CHECKING:
    import onnx


class _Packed(NamedTuple):
    """Several operands in one input, which its rank says."""

    position: int
    rank: int
    what: str


_PACKED: Mapping[tuple[str, str], tuple[_Packed, ...]] = {
    (MICROSOFT, "MultiHeadAttention"): (_Packed(0, 5, "queries, keys and values"), _Packed(1, 5, "keys and values")),
}


def kernel_verdicts(model: onnx.ModelProto) -> Mapping[int, Verdict]:
    """Return a refusal for each node, by its position, that is of such a form."""
    concerned = {
        position: forms
        for position, node in enumerate(model.graph.node)
        if (forms := _PACKED.get((node.domain, node.op_type)))
    }
    ranks = _ranks(model) if concerned else {}
    verdicts = {
        position: _kernel_verdict(model.graph.node[position], forms, ranks) for position, forms in concerned.items()
    }
    return {position: verdict for position, verdict in verdicts.items() if not verdict}


def _ranks(model: onnx.ModelProto) -> Mapping[str, int]:
    graph = model.graph
    typed = (value for values in (graph.value_info, graph.output, graph.input) for value in values)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in typed if _has_rank(value)}
    return {**ranks, **{tensor.name: len(tensor.dims) for tensor in graph.initializer}}


def _has_rank(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def _kernel_verdict(node: onnx.NodeProto, forms: tuple[_Packed, ...], ranks: Mapping[str, int]) -> Verdict:
    for position, rank, operands in forms:
        if position < len(node.input) and ranks.get(node.input[position]) == rank:
            detail = f"ONNX Runtime has no kernel for {node.op_type} of {operands} in one input of {rank} dimensions"
            return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    return SUPPORTED
