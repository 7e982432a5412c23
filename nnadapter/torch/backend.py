"""A graph that PyTorch captured -> what PyTorch calls in its place, by way of AOTAutograd."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._functorch.partitioners import min_cut_rematerialization_partition

from nnadapter.errors import FallbackWarning, InvalidOptionError, NNAdapterError
from nnadapter.torch.graphs import Boxed, Graph, IsWeight, Left, compile_graph
from nnadapter.torch.operators import decomposition_table
from nnadapter.torch.records import Capture, remember
from nnadapter.torch.settings import Settings, read_settings
from nnadapter.torch.sources import line_of
from partition.verdict import Reason, Unsupported


def compile_captured(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """Compile a graph that PyTorch captured; see `nnadapter.torch.nnadapter`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit, or torch.compile was given more than options.
    """
    if others:
        raise InvalidOptionError(f"back end 'nnadapter' takes options= alone, got {', '.join(others)}=; leave it out")
    settings = read_settings(options)
    capture = _capture(graph_module)
    remember(capture)
    compiler = aot_autograd(
        fw_compiler=partial(_compile, "forward", settings, capture, _never),
        bw_compiler=partial(_compile, "backward", settings, capture, _never),
        inference_compiler=partial(_compile, "inference", settings, capture, _weights(graph_module, example_inputs)),
        decompositions=dict(decomposition_table()),
        partition_fn=min_cut_rematerialization_partition,
    )
    try:
        compiled: Callable[..., Any] = compiler(graph_module, example_inputs)
    except (NNAdapterError, TensorifyScalarRestartAnalysis):  # the latter is how PyTorch starts over
        raise
    except Exception as error:  # whatever PyTorch cannot compile, it can run
        if settings.options.fallback == "forbid":
            raise
        return _as_captured(graph_module, capture, settings, error)
    return compiled


def _as_captured(
    graph_module: fx.GraphModule, capture: Capture, settings: Settings, error: Exception
) -> Callable[..., Any]:
    """The graph as PyTorch captured it, run by PyTorch, with the reason in the report."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    reason = Unsupported(
        Reason.COMPILE_FAILED, f"PyTorch failed to make graphs in ATen: {type(error).__name__}: {said}"
    )
    nodes = [node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    left = [
        Left(operator=str(node.target), refusal=reason, line=line_of(node.meta.get("stack_trace"))) for node in nodes
    ]
    capture.graphs[:] = [Graph(kind="captured", operators=len(nodes), delegated=0, programs=(), left=tuple(left))]
    if settings.options.fallback == "warn":
        warnings.warn(FallbackWarning(f"{len(nodes)} operations run in PyTorch: {reason.detail}"), stacklevel=2)
    return partial(_run, capture, graph_module)


def _run(capture: Capture, graph_module: fx.GraphModule, *inputs: Any) -> Any:
    """Run a graph; the capture is kept as long as this is."""
    return graph_module(*inputs)


def _compile(
    kind: str, settings: Settings, capture: Capture, is_weight: IsWeight, graph_module: fx.GraphModule, _: Sequence[Any]
) -> Boxed:
    shown = torch._guards.TracingContext.get().fw_metadata.num_forward_returns if kind == "forward" else None
    graph, run = compile_graph(graph_module, kind, settings, is_weight, shown)
    capture.graphs.append(graph)
    run.capture = capture  # type: ignore[attr-defined]  # lives as long as PyTorch keeps the function
    return run


def _capture(graph_module: fx.GraphModule) -> Capture:
    reason = graph_module.compile_subgraph_reason
    if not reason.graph_break:
        return Capture(ended="", line="")
    lines = [f"{frame.filename}:{frame.lineno}" for frame in reason.user_stack]
    return Capture(ended=next(iter(reason.reason.strip().splitlines()), ""), line=lines[-1] if lines else "")


def _weights(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> IsWeight:
    """Whether a tensor is a parameter or buffer of a module, and may be a constant as long as it does not change."""
    places = graph_module.graph.find_nodes(op="placeholder")
    held = {id(value) for node, value in zip(places, example_inputs, strict=True) if _is_held(node, value)}
    held.update(id(value) for value in (*graph_module.parameters(), *graph_module.buffers()))
    return lambda value: id(value) in held and not value.is_inference()


def _is_held(node: fx.Node, value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _never(value: Any) -> bool:
    return False
