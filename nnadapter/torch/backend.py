"""Back end of torch.compile: compiles captured graphs, and reports on them."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.ops import aten
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from nnadapter.errors import FallbackWarning, InvalidOptionError, NNAdapterError
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass, field
from nnadapter.session.session import InferenceSession
from nnadapter.torch.compiled_report import FallbackOperatorFacts, GraphFacts, TorchReport, gathered
from nnadapter.torch.layouts import copy_into_layout_of, duplicate_views
from nnadapter.torch.onnx_forms import preserve_recurrence, without_onednn_lstm
from nnadapter.torch.operators import computes, decomposition_table, name_of, refusal, registry
from nnadapter.torch.program import Program
from nnadapter.torch.regions import (
    ExportFailure,
    Region,
    Settings,
    call_regions,
    called,
    computed_results,
    copied,
    export,
    halved,
    inputs_of,
    line_of,
    origins,
    read_settings,
    readers,
    regions_of,
    results_in,
    uses_of,
    working,
)
from nnadapter.torch.resident_runs import added, owns, owns_memory
from nnadapter.torch.resident_tensors import Resident
from partition.graph import Reason, Unsupported

if TYPE_CHECKING:
    import onnx


_SIZE = aten.sym_size.int


def replace_computed_sizes(graph_module: fx.GraphModule) -> None:
    """Replace sizes of intermediate tensors in the graph by expressions of input sizes."""
    graph = graph_module.graph
    size_nodes = [node for node in graph.find_nodes(op="call_function", target=_SIZE) if _is_computed(node)]
    symbol_nodes = _input_symbols(graph) if size_nodes else {}
    for node in size_nodes:
        expression = _expression(node.meta["val"])
        if expression.free_symbols and expression.free_symbols <= symbol_nodes.keys():
            node.replace_all_uses_with(_inserted(graph, expression, symbol_nodes))
            graph.erase_node(node)
    if size_nodes:
        graph_module.recompile()


def _is_computed(node: fx.Node) -> bool:
    return node.all_input_nodes[0].op == "call_function" and isinstance(node.meta["val"], torch.SymInt)


def _input_symbols(graph: fx.Graph) -> Mapping[Any, fx.Node]:
    inputs = graph.find_nodes(op="placeholder")
    numbers = {_expression(node.meta["val"]): node for node in inputs if isinstance(node.meta.get("val"), torch.SymInt)}
    tensors = [(node, node.meta["val"].shape) for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)]
    places = {
        _expression(size): (node, axis)
        for node, shape in reversed(tensors)
        for axis, size in enumerate(shape)
        if isinstance(size, torch.SymInt) and _expression(size) not in numbers
    }
    with graph.inserting_after(inputs[-1]):
        size_nodes = {symbol: _insert_size_node(graph, *place) for symbol, place in places.items()}
    return {**size_nodes, **numbers}


def _expression(size: torch.SymInt) -> Any:
    return size.node.expr


def _insert_size_node(graph: fx.Graph, node: fx.Node, axis: int) -> fx.Node:
    size_node = graph.call_function(_SIZE, (node, axis))
    size_node.meta["val"] = node.meta["val"].shape[axis]
    return size_node


def _inserted(graph: fx.Graph, expression: Any, symbol_nodes: Mapping[Any, fx.Node]) -> fx.Node:
    if expression in symbol_nodes:
        return symbol_nodes[expression]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: fx.Proxy(node, tracer) for symbol, node in symbol_nodes.items()}
    existing_nodes = set(graph.nodes)
    first = next(node for node in graph.nodes if node.op == "call_function" and node not in symbol_nodes.values())
    with graph.inserting_before(first):
        result: fx.Node = sympy_interp(PythonReferenceAnalysis, proxies, expression).node
    for node in graph.nodes:
        if node not in existing_nodes:
            node.meta["val"] = node.target(*fx.map_arg(node.args, lambda arg: arg.meta["val"]))
    return result


Boxed = Callable[[list[Any]], Any]
"""Boxed calling convention of AOTAutograd: the callee empties the list, which frees tensors early."""
IsWeight = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Compiled ATen graph: programs for its regions, and operators that PyTorch runs."""

    kind: str
    operators: int
    delegated: int
    programs: tuple[Program, ...]
    fallback_operators: tuple[FallbackOperatorFacts, ...]


def compile_graph(
    graph_module: fx.GraphModule,
    kind: str,
    settings: Settings,
    is_weight: IsWeight,
    visible_count: int | None = None,
    overwritten_inputs: Sequence[int] = (),
    resident_results: Collection[int] = (),
) -> tuple[Graph, Boxed]:
    """Compile an ATen graph into sessions and PyTorch operators; modifies `graph_module`, which must be functional.

    `kind` is `inference`, `forward` or `backward`; `is_weight` returns True for inputs that may be constants. User code
    sees the first `visible_count` results (None: all); the others are saved for the backward graph. Each call writes
    its first results into `overwritten_inputs`, in this order. Results at `resident_results` stay on the device.
    """
    replace_computed_sizes(graph_module)
    computed = computed_results(graph_module, kind, visible_count) if owns_memory(settings) else frozenset()
    refused = {node: reason for node in called(graph_module) if (reason := refusal(node)) is not None}
    exported = _exported(graph_module, refused, computed)
    nodes, work = called(graph_module), working(graph_module)
    regions = [region for region, _ in exported]
    uses = uses_of(graph_module, kind, visible_count, overwritten_inputs, computed, regions, resident_results)
    inputs = inputs_of(graph_module)
    steady = {node for place, node in enumerate(inputs) if place not in overwritten_inputs}
    programs = [
        Program(region, model, settings, _weighs(region, steady, is_weight), uses) for region, model in exported
    ]
    graph = Graph(
        kind=kind,
        operators=len(work),
        delegated=sum(len(region.working) for region in regions),
        programs=tuple(programs),
        fallback_operators=tuple(_fallback_operators([node for node in nodes if node in work], refused)),
    )
    run = _runner(graph_module, nodes, regions, programs)
    saved_inputs = [(place, node) for place, node in enumerate(inputs) if node.name in uses.read and kind == "backward"]
    layout_copies = {place: copy_into_layout_of(node.meta.get("val")) for place, node in saved_inputs}
    if not owns_memory(settings):
        layout_copies = {place: lay for place, lay in layout_copies.items() if lay is not None}
    return graph, _boxed(partial(_run_reading, run, layout_copies) if layout_copies else run)


def _exported(
    graph_module: fx.GraphModule, refused: dict[fx.Node, Unsupported], computed: Collection[fx.Node]
) -> list[tuple[Region, onnx.ModelProto]]:
    exports: dict[tuple[fx.Node, ...], tuple[Region, onnx.ModelProto]] = {}
    while True:
        duplicate_views(graph_module, computed, readers(refused))
        regions = regions_of(graph_module, refused, computed)
        refused_count = len(refused)
        for region in regions:
            if region.nodes not in exports:
                try:
                    exports[region.nodes] = (region, export(region.module))
                except ExportFailure as failure:
                    refused.update(_blamed(region, failure))
        if len(refused) == refused_count:
            return [exports[region.nodes] for region in regions]


def _blamed(region: Region, failure: ExportFailure) -> dict[fx.Node, Unsupported]:
    named = {node for node in region.nodes if str(node.target) == failure.target}
    if not named and len(region.working) > 1:
        reasons = {node: reason for half in halved(region) for node, reason in _failing(half).items()}
        if reasons:
            return reasons
    named = named or set(region.nodes)
    taking = {node for node in region.nodes if set(node.all_input_nodes) & named and not computes(node)}
    return dict.fromkeys((*named, *taking), Unsupported(Reason.COMPILE_FAILED, failure.detail))


def _failing(region: Region) -> dict[fx.Node, Unsupported]:
    try:
        export(region.module)
    except ExportFailure as failure:
        return _blamed(region, failure)
    return {}


def _weighs(region: Region, steady: Collection[fx.Node], is_weight: IsWeight) -> Callable[[int, Any], bool]:
    places = {place for place, node in enumerate(region.inputs) if node in steady or node.op == "get_attr"}
    return lambda place, value: place in places and is_weight(value)


def failed_operators(program: Program) -> Iterator[FallbackOperatorFacts]:
    """Yield the operators of a region that PyTorch runs because its session failed."""
    reason = program.repeated if program.failure is None else program.failure
    if reason is not None:
        yield from _fallback_operators(program.region.working, dict.fromkeys(program.region.working, reason))


def _fallback_operators(
    nodes: Sequence[fx.Node], refused: Mapping[fx.Node, Unsupported]
) -> Iterator[FallbackOperatorFacts]:
    for node in nodes:
        if node in refused:
            yield _fallback_operator(name_of(node), node, refused[node])


def _fallback_operator(operator: str, node: fx.Node, refused: Unsupported) -> FallbackOperatorFacts:
    return FallbackOperatorFacts(
        operator=operator,
        device="",
        reason=str(refused.reason),
        detail=refused.detail,
        line=line_of(node.meta.get("stack_trace")),
        count=1,
    )


def _runner(
    graph_module: fx.GraphModule, nodes: Sequence[fx.Node], regions: Sequence[Region], programs: Sequence[Program]
) -> Boxed:
    inputs = inputs_of(graph_module)
    if len(regions) == 1 and set(regions[0].nodes) == set(nodes) and set(regions[0].inputs) <= set(inputs):
        return _direct(inputs, regions[0], programs[0], results_in(graph_module))
    call_regions(graph_module, regions, programs)
    return partial(_spread, graph_module.forward)


def _direct(inputs: Sequence[fx.Node], region: Region, program: Program, results: Sequence[Any]) -> Boxed:
    reads = [inputs.index(node) for node in region.inputs]
    places = {node: place for place, node in enumerate((*region.outputs, *inputs))}
    gives = [places[result] if isinstance(result, fx.Node) else None for result in results]
    is_identity = gives == list(range(len(region.outputs)))

    def run(args: list[Any]) -> list[Any]:
        outputs = program(*[args[place] for place in reads])
        if is_identity:
            args.clear()
            return list(outputs)
        all_values = (*outputs, *args)
        args.clear()
        return [None if place is None else all_values[place] for place in gives]

    return run


def _spread(function: Callable[..., Any], args: list[Any]) -> Any:
    arguments = tuple(args)
    args.clear()
    return function(*arguments)


def _run_reading(function: Boxed, layout_copies: Mapping[int, Callable[[Any], Any] | None], args: list[Any]) -> Any:
    for place, lay in layout_copies.items():
        is_kept = type(args[place]) is Resident and not isinstance(args[place], torch.nn.Parameter)
        value = args[place].plain() if is_kept else args[place]
        args[place] = value if lay is None else lay(value)
    return function(args)


def _boxed(function: Boxed) -> Boxed:
    function._boxed_call = True  # type: ignore[attr-defined]  # PyTorch's mark of the calling convention
    return function


_COMPILES = "compile_wrapper"
"""PyTorch's function that compiles; its local `fn` is the user's callable."""


@dataclass(slots=True, weakref_slot=True)
class Capture:
    """Compiled graphs of one capture by Dynamo, and the graph break after it."""

    ended: str
    """Reason of the graph break, if any."""
    line: str
    graphs: list[Graph] = field(default_factory=list)


_captures: weakref.WeakKeyDictionary[Any, list[weakref.ref[Capture]]] = weakref.WeakKeyDictionary()
_all: list[weakref.ref[Capture]] = []
_lock = new_lock()


def record_capture(capture: Capture) -> None:
    """Record a capture, by weak reference, for the callable being compiled."""
    owner = _compiled_now(sys._getframe())
    with _lock:
        _all[:] = [*(reference for reference in _all if reference() is not None), weakref.ref(capture)]
    if owner is not None:
        with _lock:
            _captures.setdefault(owner, []).append(weakref.ref(capture))


def captures_of(compiled: Any) -> list[Capture]:
    """Return the captures of a callable, in order."""
    target = original_callable(compiled)
    with _lock:
        noted = [reference() for reference in _captures.get(target, ())]
        all_captures = [reference() for reference in _all]
    target_captures = [capture for capture in noted if capture is not None]
    if target_captures or not isinstance(target, torch.nn.Module):
        return target_captures
    tensors = frozenset(map(id, (*target.parameters(), *target.buffers())))
    return [capture for capture in all_captures if capture is not None and _has_run(capture, tensors)]


def _has_run(capture: Capture, tensors: frozenset[int]) -> bool:
    return any(program.has_run(tensors) for graph in capture.graphs for program in graph.programs)


def _compiled_now(frame: FrameType | None) -> Any:
    while frame is not None:
        if frame.f_code.co_name == _COMPILES and "fn" in frame.f_locals:
            return original_callable(frame.f_locals["fn"])
        frame = frame.f_back
    return None


def original_callable(compiled: Any) -> Any:
    """Return the module or function that was compiled."""
    if isinstance(compiled, torch._dynamo.OptimizedModule):
        return compiled._orig_mod
    compiled = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    if isinstance(getattr(compiled, "__wrapped__", None), torch.nn.Module):  # a module of PyTorch itself
        return compiled.__wrapped__
    bound = getattr(compiled, "__self__", None)
    return bound if isinstance(bound, torch.nn.Module) else getattr(compiled, "__func__", compiled)


WeightsOf = Callable[[frozenset[int]], IsWeight]


def compile_captured(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a captured graph; see `nnadapter.torch.nnadapter`."""
    if kwargs:
        raise InvalidOptionError(f"back end 'nnadapter' accepts only options=, got {', '.join(kwargs)}=; remove it")
    settings = read_settings(options)
    if not isinstance(results_in(graph_module), (tuple, list)):
        return _of_one(compile_captured(_giving_one(graph_module), example_inputs, options=options))
    if any(type(tensor) is Resident for tensor in (*graph_module.parameters(), *graph_module.buffers())):
        graph_module, lifted = _lifted(graph_module)
        return partial(compile_captured(graph_module, [*lifted, *example_inputs], options=options), *lifted)
    capture = _capture(graph_module)
    record_capture(capture)
    parameter_count = len(
        [*graph_module.parameters(), *graph_module.buffers()]
    )  # AOTAutograd makes these its first inputs
    resident_results = frozenset(
        parameter_count + place for place, value in enumerate(example_inputs) if _is_resident_parameter(value)
    )
    example_inputs = _forms(graph_module, example_inputs)
    if not _needs_gradients(graph_module, example_inputs):
        preserve_recurrence(graph_module, registry())
    compiler = aot_autograd(
        fw_compiler=partial(_compile, "forward", settings, capture, resident_results, _none),
        bw_compiler=partial(_compile, "backward", settings, capture, resident_results, _none),
        inference_compiler=partial(
            _compile, "inference", settings, capture, resident_results, _weights(graph_module, example_inputs)
        ),
        decompositions=dict(decomposition_table()),
        partition_fn=min_cut_rematerialization_partition,
    )
    try:
        with without_onednn_lstm(graph_module):
            compiled: Callable[..., Any] = compiler(graph_module, example_inputs)
    except (NNAdapterError, TensorifyScalarRestartAnalysis):  # PyTorch restarts its analysis by the latter
        raise
    except Exception as error:  # PyTorch can run anything that it cannot compile
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
    graph = fx.Graph()
    graph.output((graph.graph_copy(graph_module.graph, {}),))
    return fx.GraphModule(graph_module, graph)


def _of_one(compiled: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: compiled(*inputs)[0]


def _as_captured(
    graph_module: fx.GraphModule, capture: Capture, settings: Settings, error: Exception
) -> Callable[..., Any]:
    message = next(iter(str(error).strip().splitlines()), type(error).__name__)
    reason = Unsupported(
        Reason.COMPILE_FAILED, f"PyTorch failed to lower the graph to ATen: {type(error).__name__}: {message}"
    )
    nodes = [node for node in graph_module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    fallback_operators = tuple(_fallback_operator(str(node.target), node, reason) for node in nodes)
    capture.graphs[:] = [
        Graph(kind="captured", operators=len(nodes), delegated=0, programs=(), fallback_operators=fallback_operators)
    ]
    if settings.options.fallback_at("compile") == "warn":
        warnings.warn(FallbackWarning(f"{len(nodes)} operations run in PyTorch: {reason.detail}"), stacklevel=2)
    return partial(_run, capture, graph_module)


def _run(capture: Capture, graph_module: fx.GraphModule, *inputs: Any) -> Any:
    """Run the graph; the argument `capture` prevents its garbage collection."""
    return graph_module(*inputs)


def _compile(
    kind: str,
    settings: Settings,
    capture: Capture,
    resident_results: frozenset[int],
    is_weight: WeightsOf,
    graph_module: fx.GraphModule,
    _: Sequence[Any],
) -> Boxed:
    context = torch._guards.TracingContext.try_get()  # None if user code calls the back end
    metadata = context.fw_metadata if context is not None and kind != "backward" else None
    visible_count = metadata.num_forward_returns if metadata is not None and kind == "forward" else None
    overwritten_inputs = tuple(metadata.mutated_inp_runtime_indices) if metadata is not None else ()
    results = _resident_results(graph_module, kind, resident_results, overwritten_inputs)
    graph, run = compile_graph(
        graph_module,
        kind,
        settings,
        is_weight(frozenset(overwritten_inputs)),
        visible_count,
        overwritten_inputs,
        results,
    )
    capture.graphs.append(graph)
    run.capture = capture  # type: ignore[attr-defined]  # keeps the capture alive
    return run


def _capture(graph_module: fx.GraphModule) -> Capture:
    reason = getattr(graph_module, "compile_subgraph_reason", None)  # missing in a user's graph
    if reason is None or not reason.graph_break:
        return Capture(ended="", line="")
    lines = [f"{frame.filename}:{frame.lineno}" for frame in reason.user_stack]
    return Capture(ended=next(iter(reason.reason.strip().splitlines()), ""), line=lines[-1] if lines else "")


def _weights(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> WeightsOf:
    parameters = {place for place, value in enumerate(example_inputs) if isinstance(value, torch.nn.Parameter)}
    places = inputs_of(graph_module)
    weight_ids = {id(value) for node, value in zip(places, example_inputs, strict=True) if _is_held(node, value)}
    weight_ids.update(id(value) for value in (*graph_module.parameters(), *graph_module.buffers()))

    def is_weight(value: Any) -> bool:
        return id(value) in weight_ids and type(value) is not Resident and not value.is_inference()

    return lambda overwritten_inputs: _never if parameters & overwritten_inputs else is_weight


def _is_held(node: fx.Node, value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _is_resident_parameter(value: Any) -> bool:
    return type(value) is Resident and isinstance(value, torch.nn.Parameter)


def _lifted(graph_module: fx.GraphModule) -> tuple[fx.GraphModule, list[Any]]:
    lifted_module = copied(graph_module)
    graph = lifted_module.graph
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
    pairs = zip(inputs_of(graph_module), example_inputs, strict=True)
    return [_form_of(node, value) if type(value) is Resident else value for node, value in pairs]


def _form_of(node: fx.Node, value: Resident) -> Any:
    captured = node.meta.get("example_value")
    form = (captured if type(captured) is Resident else value).form.detach()
    return (
        torch.nn.Parameter(form, value.requires_grad)
        if _is_resident_parameter(value)
        else form.requires_grad_(value.requires_grad)
    )


def _resident_results(
    graph_module: fx.GraphModule, kind: str, resident_results: frozenset[int], overwritten_inputs: Sequence[int]
) -> frozenset[int]:
    results = results_in(graph_module)
    if kind == "backward":  # one gradient per input
        return resident_results if max(resident_results, default=0) < len(results) else frozenset()
    is_step = kind == "inference" and not resident_results.isdisjoint(overwritten_inputs)
    return frozenset(range(len(results))) if is_step else frozenset()


def _never(value: Any) -> bool:
    return False


def _none(overwritten_inputs: frozenset[int]) -> IsWeight:
    return _never


def report_compiled(compiled: Any) -> TorchReport:
    """Report on a compiled callable; see `nnadapter.torch.report`."""
    if not callable(compiled):
        raise InvalidOptionError(f"report needs a result of torch.compile, got {type(compiled).__name__}")
    target = original_callable(compiled)
    tensors = (*target.parameters(), *target.buffers()) if isinstance(target, torch.nn.Module) else ()
    weights = frozenset(map(id, tensors))
    graphs = tuple(_graph(capture, graph, weights) for capture in captures_of(compiled) for graph in capture.graphs)
    return TorchReport(name=_name(target), graphs=graphs, uncaptured_module_types=_not_captured(target))


def _not_captured(target: Any) -> tuple[str, ...]:
    if torch._dynamo.config.allow_rnn or not isinstance(target, torch.nn.Module):
        return ()
    layers = [module for module in target.modules() if isinstance(module, torch.nn.RNNBase)]
    return tuple(dict.fromkeys(type(layer).__name__ for layer in layers))


def _name(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)


def _graph(capture: Capture, graph: Graph, weights: frozenset[int]) -> GraphFacts:
    programs = [leaf for program in graph.programs for leaf in program.leaves]
    program_sessions = [(program, program.sessions(weights)) for program in programs]
    refused = [facts for program, sessions in program_sessions for facts in _refused(program, sessions)]
    failed = [fallback for program in programs for fallback in failed_operators(program)]
    moved = added(program.transferred_bytes for program in programs)
    return GraphFacts(
        kind=graph.kind,
        operators=graph.operators,
        delegated=graph.delegated - len(failed),
        sessions=tuple(session.report() for _, sessions in program_sessions for session in sessions),
        pending_regions=sum(not sessions and program.failure is None for program, sessions in program_sessions),
        fallback_operators=gathered([*graph.fallback_operators, *failed]),
        refused_operators=gathered(refused),
        graph_break_reason=capture.ended,
        graph_break_line=capture.line,
        unfrozen_weights=sum(program.unfrozen_weights for program in programs),
        input_bytes=moved.input_bytes,
        output_bytes=moved.output_bytes,
        to_device_bytes=moved.to_device,
        to_host_bytes=moved.to_host,
        device_memory_full=any(program.is_crowded for program in programs),
        separate_memory_devices=_copying(session for _, sessions in program_sessions for session in sessions),
    )


def _copying(sessions: Iterable[InferenceSession]) -> tuple[str, ...]:
    names = dict.fromkeys(name for session in sessions for name in session.devices)
    return tuple(filter(owns, names))


def _refused(program: Program, sessions: Sequence[InferenceSession]) -> list[FallbackOperatorFacts]:
    node_origins = origins(program.model)
    return [
        FallbackOperatorFacts(
            operator=node_origins[node.name].operator,
            device=refusal.device,
            reason=refusal.reason,
            detail=refusal.detail,
            line=node_origins[node.name].line,
            count=1,
        )
        for session in sessions
        for node in session.report().nodes
        for refusal in node.refusals
        if node.name in node_origins
    ]
