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
from nnadapter.torch.records import Capture, remember
from nnadapter.torch.resident import Resident
from nnadapter.torch.settings import Settings, read_settings
from nnadapter.torch.sources import line_of
from nnadapter.torch_models.operators import decomposition_table, registry
from nnadapter.torch_models.recurrence import preserve_recurrence, written_in_steps
from partition.verdict import Reason, Unsupported

WeightsOf = Callable[[frozenset[int]], IsWeight]
"""Which tensors may be constants, by the inputs of the graph that it writes to."""


def compile_captured(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a graph that PyTorch captured; see `nnadapter.torch.nnadapter`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: a device does not exist or cannot be used.
        InvalidOptionError: an option does not exist or does not fit, or torch.compile was given more than options.
    """
    if kwargs:
        raise InvalidOptionError(f"back end 'nnadapter' takes options= alone, got {', '.join(kwargs)}=; leave it out")
    settings = read_settings(options)
    if not isinstance(graph_module.graph.output_node().args[0], (tuple, list)):
        return _of_one(compile_captured(_giving_one(graph_module), example_inputs, options=options))
    if any(type(tensor) is Resident for tensor in (*graph_module.parameters(), *graph_module.buffers())):
        graph_module, lifted = _lifted(graph_module)
        return partial(compile_captured(graph_module, [*lifted, *example_inputs], options=options), *lifted)
    capture = _capture(graph_module)
    remember(capture)
    parameter_count = len(
        [*graph_module.parameters(), *graph_module.buffers()]
    )  # AOTAutograd makes these its first inputs
    lying = frozenset(parameter_count + place for place, value in enumerate(example_inputs) if _lives(value))
    example_inputs = _forms(graph_module, example_inputs)
    if not _needs_gradients(graph_module, example_inputs):
        preserve_recurrence(graph_module, registry())
    compiler = aot_autograd(
        fw_compiler=partial(_compile, "forward", settings, capture, lying, _none),
        bw_compiler=partial(_compile, "backward", settings, capture, lying, _none),
        inference_compiler=partial(
            _compile, "inference", settings, capture, lying, _weights(graph_module, example_inputs)
        ),
        decompositions=dict(decomposition_table()),
        partition_fn=min_cut_rematerialization_partition,
    )
    try:
        with written_in_steps(graph_module):
            compiled: Callable[..., Any] = compiler(graph_module, example_inputs)
    except (NNAdapterError, TensorifyScalarRestartAnalysis):  # the latter is how PyTorch starts over
        raise
    except Exception as error:  # whatever PyTorch cannot compile, it can run
        if settings.options.fallback_at("compile") == "forbid":
            raise
        return _as_captured(graph_module, capture, settings, error)
    return compiled


def _needs_gradients(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    tensors = (*example_inputs, *graph_module.parameters(), *graph_module.buffers())
    return torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )


def _giving_one(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A person's own graph, which gives one tensor, as PyTorch's captures are: they give several."""
    graph = fx.Graph()
    graph.output((graph.graph_copy(graph_module.graph, {}),))
    return fx.GraphModule(graph_module, graph)


def _of_one(compiled: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: compiled(*inputs)[0]


def _as_captured(
    graph_module: fx.GraphModule, capture: Capture, settings: Settings, error: Exception
) -> Callable[..., Any]:
    """The graph as PyTorch captured it, run by PyTorch, with the reason in the report."""
    message = next(iter(str(error).strip().splitlines()), type(error).__name__)
    reason = Unsupported(
        Reason.COMPILE_FAILED, f"PyTorch failed to make graphs in ATen: {type(error).__name__}: {message}"
    )
    nodes = [node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    fallback_operators = [
        Left(operator=str(node.target), refusal=reason, line=line_of(node.meta.get("stack_trace"))) for node in nodes
    ]
    capture.graphs[:] = [
        Graph(kind="captured", operators=len(nodes), delegated=0, programs=(), left=tuple(fallback_operators))
    ]
    if settings.options.fallback_at("compile") == "warn":
        warnings.warn(FallbackWarning(f"{len(nodes)} operations run in PyTorch: {reason.detail}"), stacklevel=2)
    return partial(_run, capture, graph_module)


def _run(capture: Capture, graph_module: fx.GraphModule, *inputs: Any) -> Any:
    """Run a graph; the capture is kept as long as this is."""
    return graph_module(*inputs)


def _compile(
    kind: str,
    settings: Settings,
    capture: Capture,
    lying: frozenset[int],
    is_weight: WeightsOf,
    graph_module: fx.GraphModule,
    _: Sequence[Any],
) -> Boxed:
    context = torch._guards.TracingContext.try_get()  # none where a person calls the back end
    metadata = context.fw_metadata if context is not None and kind != "backward" else None
    shown = metadata.num_forward_returns if metadata is not None and kind == "forward" else None
    written = tuple(metadata.mutated_inp_runtime_indices) if metadata is not None else ()
    results = _lying(graph_module, kind, lying, written)
    graph, run = compile_graph(graph_module, kind, settings, is_weight(frozenset(written)), shown, written, results)
    capture.graphs.append(graph)
    run.capture = capture  # type: ignore[attr-defined]  # lives as long as PyTorch keeps the function
    return run


def _capture(graph_module: fx.GraphModule) -> Capture:
    reason = getattr(graph_module, "compile_subgraph_reason", None)  # a person's own graph has none
    if reason is None or not reason.graph_break:
        return Capture(ended="", line="")
    lines = [f"{frame.filename}:{frame.lineno}" for frame in reason.user_stack]
    return Capture(ended=next(iter(reason.reason.strip().splitlines()), ""), line=lines[-1] if lines else "")


def _weights(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> WeightsOf:
    """Whether a tensor is a parameter or buffer of a module, and may be a constant as long as it does not change.

    Where parameters are among what a graph writes to, it is the step of an optimizer, and all that it reads changes.
    """
    parameters = {place for place, value in enumerate(example_inputs) if isinstance(value, torch.nn.Parameter)}
    places = graph_module.graph.find_nodes(op="placeholder")
    weight_ids = {id(value) for node, value in zip(places, example_inputs, strict=True) if _is_held(node, value)}
    weight_ids.update(id(value) for value in (*graph_module.parameters(), *graph_module.buffers()))

    def is_weight(value: Any) -> bool:
        return id(value) in weight_ids and type(value) is not Resident and not value.is_inference()

    return lambda written: _never if parameters & written else is_weight


def _is_held(node: fx.Node, value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _lives(value: Any) -> bool:
    """Whether a tensor is a parameter that lives on a device, as its gradient and the state of optimizers do."""
    return type(value) is Resident and isinstance(value, torch.nn.Parameter)


def _lifted(graph_module: fx.GraphModule) -> tuple[fx.GraphModule, list[Any]]:
    """A graph that has what lies on a device as its first inputs, in place of attributes, and these."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    lifted_module = fx.GraphModule(graph_module, graph)
    lifted_module.compile_subgraph_reason = getattr(graph_module, "compile_subgraph_reason", None)
    first, residents = next(iter(graph.nodes)), []
    for node in graph.find_nodes(op="get_attr"):
        if type(getattr(graph_module, node.target, None)) is Resident:
            with graph.inserting_before(first):
                placeholder = graph.placeholder(node.name)
            placeholder.meta = node.meta
            node.replace_all_uses_with(placeholder)
            graph.erase_node(node)
            residents.append(getattr(graph_module, node.target))
            delattr(lifted_module, node.target)
    lifted_module.recompile()
    return lifted_module, residents


def _forms(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """What AOTAutograd makes graphs with in place of tensors on a device: graphs take these as any others."""
    pairs = zip(graph_module.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
    return [_form_of(node, value) if type(value) is Resident else value for node, value in pairs]


def _form_of(node: fx.Node, value: Resident) -> Any:
    """What Dynamo captured it as: its sizes are those of the graph, open or not."""
    captured = node.meta.get("example_value")
    form = (captured if type(captured) is Resident else value).form.detach()
    return torch.nn.Parameter(form, value.requires_grad) if _lives(value) else form.requires_grad_(value.requires_grad)


def _lying(graph_module: fx.GraphModule, kind: str, lying: frozenset[int], written: Sequence[int]) -> frozenset[int]:
    """Which results of a graph lie on a device: gradients of parameters that do, and all of an optimizer's step."""
    results = graph_module.graph.output_node().args[0]
    if kind == "backward":  # a gradient for each input
        return lying if max(lying, default=0) < len(results) else frozenset()
    is_step = kind == "inference" and not lying.isdisjoint(written)
    return frozenset(range(len(results))) if is_step else frozenset()


def _never(value: Any) -> bool:
    return False


def _none(written: frozenset[int]) -> IsWeight:
    return _never
