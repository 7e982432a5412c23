"""LSTM and GRU at inference as one operator each, which PyTorch's exporter has an ONNX form for.

Where AOTAutograd makes a graph in ATen, it writes them step by step, for the length that comes first: a graph as long
as the input, made again for every length. So before that, what PyTorch captured of them is put into operators of ours
that stand for `aten::lstm.input` and `aten::gru.input`, and the exporter is told that they are those. For gradients
they are written in steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.ops import aten

_SEQUENCE, _STATE, _LAYERS, _DROPOUT, _TRAIN = 0, 1, 4, 5, 6
_ARGUMENTS = 9
"""How many arguments they have, and the places of some."""


@torch.library.custom_op("nnadapter::lstm", mutates_args=())  # type: ignore[untyped-decorator]
def _lstm(
    input: Tensor,  # noqa: A002  the names are ATen's, by which the exporter goes
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `aten::lstm.input`: sequences [L, N, C] (or [N, L, C]), states and weights to results and last states."""
    results = torch.lstm(
        input, list(hx), list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first
    )
    return tuple(result.clone() for result in results)


@torch.library.custom_op("nnadapter::gru", mutates_args=())  # type: ignore[untyped-decorator]
def _gru(
    input: Tensor,  # noqa: A002
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """As `aten::gru.input`."""
    results = torch.gru(input, hx, list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return tuple(result.clone() for result in results)


@_lstm.register_fake  # type: ignore[untyped-decorator]
def _of_lstm(input: Tensor, hx: Sequence[Tensor], params: Any, *options: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: A002
    """What results look like."""
    return _made(input, hx[0], *options[-2:]), hx[0].new_empty(hx[0].shape), hx[1].new_empty(hx[1].shape)


@_gru.register_fake  # type: ignore[untyped-decorator]
def _of_gru(input: Tensor, hx: Tensor, params: Any, *options: Any) -> tuple[Tensor, Tensor]:  # noqa: A002
    """What results look like."""
    return _made(input, hx, *options[-2:]), hx.new_empty(hx.shape)


def _made(sequence: Tensor, state: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    """A result that lies in memory as PyTorch's: one step behind the other."""
    first, second = (1, 0) if batch_first else (0, 1)
    width = state.shape[-1] * (2 if bidirectional else 1)
    result = sequence.new_empty((sequence.shape[first], sequence.shape[second], width))
    return result.transpose(0, 1) if batch_first else result


WHOLE: Mapping[Any, tuple[Any, Any]] = {
    torch.lstm: (torch.ops.nnadapter.lstm.default, aten.lstm.input),
    torch.gru: (torch.ops.nnadapter.gru.default, aten.gru.input),
}
"""What PyTorch captures -> our operator, and the one of ATen whose ONNX form it has."""


def preserve_recurrence(graph_module: fx.GraphModule, registry: Any) -> None:
    """Put our operators in place of LSTM and GRU in a captured graph, where `registry` has ONNX forms for them."""
    for node in graph_module.graph.nodes:
        custom_operator, theirs = WHOLE.get(node.target, (None, None))
        if custom_operator is not None and registry.is_registered(theirs) and _is_plain(node):
            node.target = custom_operator
    graph_module.recompile()


@contextmanager
def written_in_steps(graph_module: fx.GraphModule) -> Iterator[None]:
    """Make graphs with gradients within this.

    Where the input of an LSTM needs no gradient, PyTorch 2.13 takes an operator of oneDNN that is for inference alone,
    and fails at what it left for the gradients of the weights. While oneDNN is switched off, it writes steps.
    """
    was = torch._C._get_mkldnn_enabled()
    is_there = bool(graph_module.graph.find_nodes(op="call_function", target=torch.lstm))
    torch._C._set_mkldnn_enabled(was and not is_there)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was)


def register_recurrence(registry: Any) -> None:
    """Tell the exporter that our operators are those of ATen."""
    for custom_operator, theirs in WHOLE.values():
        for form in registry.get_decomps(theirs):
            registry.register_op(custom_operator, form.onnx_function)


def _is_plain(node: fx.Node) -> bool:
    """Whether it is for sequences of one length, drops nothing out, and its states are as wide as its cells."""
    if len(node.args) != _ARGUMENTS or node.kwargs or not isinstance(node.args[2], (tuple, list)):
        return False
    states = node.args[_STATE] if isinstance(node.args[_STATE], (tuple, list)) else [node.args[_STATE]]
    widths = [state.meta["example_value"].shape[-1] for state in states if isinstance(state, fx.Node)]
    drops = node.args[_TRAIN] and node.args[_DROPOUT] and node.args[_LAYERS] != 1
    return len(set(widths)) == 1 and not drops
