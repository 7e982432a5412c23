"""Regions of an ATen graph that run in sessions: settings, partitioning, ONNX export."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export import ExportedProgram, graph_signature
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support
from torch.ops import aten
from torch.utils import _pytree as pytree

from nnadapter.drivers.selection import DeviceRequest, requests_of
from nnadapter.errors import InvalidOptionError, close_names
from nnadapter.options import Options, default_devices
from nnadapter.records import dataclass, field
from nnadapter.torch.layouts import is_view, last_views
from nnadapter.torch.models import WrongType, exported, keep_type
from nnadapter.torch.operators import computes, is_random, is_size, registry
from nnadapter.torch.requirements import quiet

if TYPE_CHECKING:
    import onnx


_DEVICES = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Devices and options of a compiled function."""

    devices: Sequence[DeviceRequest]
    options: Options


def read_settings(raw_options: Mapping[str, Any] | None) -> Settings:
    """Parse `options=` of torch.compile. Raises NNAdapterError."""
    raw_options = {} if raw_options is None else raw_options
    option_names = [_DEVICES, *(field.name for field in fields(Options))]
    if not isinstance(raw_options, Mapping):
        raise InvalidOptionError(
            f"options of torch.compile must be a dictionary with {', '.join(option_names)}, "
            f"got {type(raw_options).__name__}"
        )
    for name in raw_options:
        if name not in option_names:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, option_names)}")
    devices = raw_options.get(_DEVICES)
    options = Options(**{name: value for name, value in raw_options.items() if name != _DEVICES})
    requests = requests_of(default_devices() if devices is None else devices, options.isolated)
    return Settings(devices=requests, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes that one session runs."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    """Inputs in the original graph, in the order of `module`'s placeholders."""
    outputs: tuple[fx.Node, ...]
    """Results in the original graph that are read outside the region."""
    nodes: tuple[fx.Node, ...]
    working: tuple[fx.Node, ...]


def working(graph_module: fx.GraphModule) -> set[fx.Node]:
    """Return operators that compute from values that may differ between runs."""
    varying: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or is_random(node) or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
    return {node for node in varying if computes(node)}


def called(graph_module: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes that call functions, in order."""
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def inputs_of(graph_module: fx.GraphModule) -> list[fx.Node]:
    """Return the placeholders of a graph, in order."""
    return list(graph_module.graph.find_nodes(op="placeholder"))


def results_in(graph_module: fx.GraphModule) -> Sequence[Any]:
    """Return the results of a graph: nodes or constants."""
    results: Sequence[Any] = graph_module.graph.output_node().args[0]
    return results


def copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a copy of the graph and the same attributes."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return fx.GraphModule(graph_module, graph)


def regions_of(
    graph_module: fx.GraphModule, refused: Collection[fx.Node], computed: Collection[fx.Node] = ()
) -> list[Region]:
    """Partition nodes that are not in `refused` into regions.

    Regions exclude views that only PyTorch reads, except views in `computed`.
    """
    views = last_views(graph_module, computed, readers(refused))
    supported_nodes = {node for node in called(graph_module) if node not in refused and node not in views}
    support = create_op_support(lambda modules, node: node in supported_nodes)
    with _random_in_turn(graph_module.graph):
        partitioner = CapabilityBasedPartitioner(graph_module, support, allows_single_node_partition=True)
        proposed = partitioner.propose_partitions()
    places = {node: place for place, node in enumerate(graph_module.graph.nodes)}
    partitions = [sorted(partition.nodes, key=places.__getitem__) for partition in proposed]
    work = working(graph_module)
    useful_partitions = [nodes for nodes in partitions if not work.isdisjoint(nodes)]
    return [region_of(nodes, work) for nodes in sorted(useful_partitions, key=lambda nodes: places[nodes[0]])]


def readers(refused: Collection[fx.Node]) -> frozenset[fx.Node]:
    """Return refused nodes that may observe memory layouts."""
    return frozenset(node for node in refused if not is_size(node))


def call_regions(
    graph_module: fx.GraphModule, regions: Sequence[Region], functions: Sequence[Callable[..., Any]]
) -> None:
    """Replace each region by a call of its function, which returns a tuple."""
    replaced: dict[fx.Node, fx.Node] = {}
    for region, function in zip(regions, functions, strict=True):
        _call(graph_module.graph, region, function, replaced)
    with _random_in_turn(graph_module.graph):
        _put_in_order(graph_module.graph)
    graph_module.recompile()


@contextmanager
def _random_in_turn(graph: fx.Graph) -> Iterator[None]:
    """Chain random nodes within the block, so that they keep their order."""
    nodes = [node for node in graph.nodes if is_random(node)]
    was = [node.kwargs for node in nodes]
    for predecessor, node in pairwise(nodes):
        node.kwargs = {**node.kwargs, "after": predecessor}
    try:
        yield
    finally:
        for node, kwargs in zip(nodes, was, strict=True):
            node.kwargs = kwargs


def _put_in_order(graph: fx.Graph) -> None:
    placed: dict[fx.Node, None] = {}
    for node in list(graph.nodes):
        waiting = [node]
        while waiting:
            missing = [input_node for input_node in waiting[-1].all_input_nodes if input_node not in placed]
            if missing:
                waiting.extend(reversed(missing))
            else:
                placed[waiting.pop()] = None
    end = graph.output_node()
    for node in placed:
        if node is not end:
            end.prepend(node)


def _call(graph: fx.Graph, region: Region, function: Callable[..., Any], replaced: dict[fx.Node, fx.Node]) -> None:
    with graph.inserting_after(region.nodes[-1]):
        call = graph.call_function(function, tuple(replaced.get(node, node) for node in region.inputs))
    with graph.inserting_after(call):
        for index, output in enumerate(region.outputs):
            result = graph.call_function(operator.getitem, (call, index))
            result.meta = dict(output.meta)
            output.replace_all_uses_with(result)
            replaced[output] = result
    for node in reversed(region.nodes):
        graph.erase_node(node)


def region_of(nodes: Sequence[fx.Node], work: Collection[fx.Node]) -> Region:
    """Build a region from a convex set of nodes."""
    inside = set(nodes)
    read = dict.fromkeys(
        input_node for node in nodes for input_node in node.all_input_nodes if input_node not in inside
    )
    tensors = [node for node in read if not is_size(node)]
    sizes = _Sizes(tensors)
    inputs = (
        *tensors,
        *dict.fromkeys(size_input for node in read if is_size(node) for size_input in sizes.required_inputs(node)),
    )
    graph = fx.Graph()
    copies = {node: _placeholder(graph, node) for node in inputs}
    for node in read:
        if node not in copies:
            sizes.copy(node, graph, copies)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    graph.output(tuple(copies[node] for node in outputs))
    return Region(
        module=fx.GraphModule({}, graph),
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(nodes),
        working=tuple(node for node in nodes if node in work),
    )


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    placeholder = graph.placeholder(node.name)
    placeholder.meta = dict(node.meta)
    return placeholder


class _Sizes:
    def __init__(self, tensors: Sequence[fx.Node]) -> None:
        dimensions = [(node, axis, size) for node in tensors for axis, size in enumerate(_shape(node))]
        self._places = {_expression(size): (node, axis) for node, axis, size in reversed(dimensions)}

    def required_inputs(self, node: fx.Node) -> list[fx.Node]:
        if self._place(node) is not None:
            return []
        parts = node.all_input_nodes
        if not parts or not all(map(is_size, parts)):
            return [node]
        return [size_input for part in parts for size_input in self.required_inputs(part)]

    def copy(self, node: fx.Node, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        place = self._place(node)
        if place is None:
            for part in node.all_input_nodes:
                if part not in copies:
                    self.copy(part, graph, copies)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            return
        source, axis = place
        copies[node] = graph.call_function(aten.sym_size.int, (copies[source], axis))
        copies[node].meta = dict(node.meta)

    def _place(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        return self._places.get(_expression(node.meta["val"]))


def _shape(node: fx.Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat)) else size


@dataclass(slots=True)
class Failures:
    """Number of times that a region and its parts may still be divided."""

    remaining: int

    def take(self) -> bool:
        self.remaining -= 1
        return self.remaining >= 0


def failures_for(region: Region) -> Failures:
    """Return enough divisions to isolate three failing operators."""
    return Failures(4 * max(len(region.working), 1).bit_length())


def halves(region: Region) -> tuple[fx.GraphModule, tuple[Region, Region]]:
    """Split a copy of a region; each part has half of `region.working`."""
    module, names = copied(region.module), {node.name for node in region.working}
    nodes = [node for node in called(module) if not is_size(node)]
    return module, _halved(nodes, {node for node in nodes if node.name in names})


def halved(region: Region) -> tuple[Region, Region]:
    """Split a region without copying."""
    return _halved(region.nodes, set(region.working))


def _halved(nodes: Sequence[fx.Node], work: Collection[fx.Node]) -> tuple[Region, Region]:
    working = [place for place, node in enumerate(nodes) if node in work]
    middle = working[len(working) // 2]
    first = dict.fromkeys(nodes[:middle])
    first.update({node: None for node in nodes[middle:] if node.target is operator.getitem and node.args[0] in first})
    return region_of([*first], work), region_of([node for node in nodes if node not in first], work)


def weights_of_part(
    module: fx.GraphModule, part: Region, is_weight: Callable[[int, Any], bool]
) -> Callable[[int, Any], bool]:
    """Return `is_weight` for the inputs of a part of `module`, by their positions in the part."""
    placeholders = inputs_of(module)
    places = {place: placeholders.index(node) for place, node in enumerate(part.inputs) if node.op == "placeholder"}
    return lambda place, value: place in places and is_weight(places[place], value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """Uses of values, by node name."""

    visible: Collection[str] = ()
    """Values with an observable memory layout."""
    read: Collection[str] = ()
    """Values read in PyTorch, and graph inputs that are also results."""
    returning: Collection[str] = ()
    device_tensor_results: Collection[str] = ()
    overwritten_inputs: Mapping[str, str] = field(default_factory=dict)


NO_USES = Uses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Uses of a region's results, by position."""

    hidden: frozenset[int]
    returning: frozenset[int]
    device_tensor_results: frozenset[int]
    overwritten_inputs: Mapping[int, int]

    @property
    def resident_results(self) -> frozenset[int]:
        return self.hidden | self.returning | self.device_tensor_results | self.overwritten_inputs.keys()


def computed_results(graph_module: fx.GraphModule, kind: str, visible_count: int | None) -> frozenset[fx.Node]:
    """Return results that sessions may compute although they are views.

    In a backward graph, these are views with all elements of their base; otherwise results after the first
    `visible_count`, which are saved for the backward graph.
    """
    results = [result for result in results_in(graph_module) if isinstance(result, fx.Node)]
    if kind == "backward":
        return frozenset(result for result in results if is_view(result) and _covers_base(result))
    visible_results = set(results_in(graph_module)[:visible_count])
    return frozenset(result for result in results if result not in visible_results)


def _covers_base(view: fx.Node) -> bool:
    view_value, base_value = (node.meta["val"] for node in (view, view.all_input_nodes[0]))
    sizes = [*getattr(view_value, "shape", ()), *getattr(base_value, "shape", ())]
    return bool(sizes) and all(type(size) is int for size in sizes) and bool(view_value.numel() == base_value.numel())


def uses_of(
    graph_module: fx.GraphModule,
    kind: str,
    visible_count: int | None,
    overwritten_inputs: Sequence[int] = (),
    computed: Collection[fx.Node] = (),
    regions: Sequence[Region] = (),
    resident_results: Collection[int] = (),
) -> Uses:
    """Return the uses of a graph's values; for the arguments, see `compile_graph`."""
    results, inputs = results_in(graph_module), inputs_of(graph_module)
    pairs = zip(results, (inputs[place] for place in overwritten_inputs if place < len(inputs)), strict=False)
    inside = {node for region in regions for node in region.nodes}
    outside_nodes = [node for node in called(graph_module) if node not in inside]
    passed = {node.name for node in graph_module.graph.output_node().all_input_nodes if node.op == "placeholder"}
    visible_names = _visible_names(results[:visible_count], last_views(graph_module, computed))
    return Uses(
        visible=visible_names | _names_read(node for node in outside_nodes if not is_size(node)),
        read=_names_read(outside_nodes) | passed,
        returning=visible_names if kind == "backward" else (),
        device_tensor_results={
            results[place].name for place in resident_results if isinstance(results[place], fx.Node)
        },
        overwritten_inputs={result.name: target.name for result, target in pairs if isinstance(result, fx.Node)},
    )


def _names_read(nodes: Iterable[fx.Node]) -> frozenset[str]:
    return frozenset(input_node.name for node in nodes for input_node in node.all_input_nodes)


def _visible_names(results: Sequence[object], views: Collection[fx.Node]) -> frozenset[str]:
    names: set[str] = set()
    waiting = [result for result in results if isinstance(result, fx.Node)]
    while waiting:
        node = waiting.pop()
        names.add(node.name)
        waiting.extend(node.all_input_nodes if node in views else ())
    return frozenset(names)


def roles_of(region: Region, uses: Uses) -> Roles:
    """Return the uses of a region's results."""
    names, inputs = [node.name for node in region.outputs], {node.name: at for at, node in enumerate(region.inputs)}

    def places(used_names: Collection[str]) -> frozenset[int]:
        return frozenset(place for place, name in enumerate(names) if name in used_names)

    targets = {place: inputs.get(uses.overwritten_inputs[names[place]]) for place in places(uses.overwritten_inputs)}
    overwritten_inputs = {place: target for place, target in targets.items() if target is not None}
    read = places(uses.read)
    return Roles(
        hidden=frozenset(range(len(names))) - places(uses.visible) - read,
        returning=places(uses.returning) - overwritten_inputs.keys(),
        device_tensor_results=places(uses.device_tensor_results) - read,
        overwritten_inputs=overwritten_inputs,
    )


_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_PYTORCH = str(Path(torch.__file__).parent)


def line_of(stack_trace: str | None) -> str:
    """Return the innermost `FILE:LINE` outside PyTorch, or an empty string."""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(stack_trace or "")]
    outside = [f"{file}:{line}" for file, line in frames if not file.startswith(_PYTORCH)]
    return outside[-1] if outside else ""


_BLAMED = re.compile(r"target=torch\.ops\.([\w.]+)\]")


class ExportFailure(Exception):  # noqa: N818  always caught
    """Failure of the exporter at an operator."""

    def __init__(self, target: str, detail: str) -> None:
        super().__init__(detail)
        self.target = target
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Origin:
    """Operator and source line of an exported node."""

    operator: str
    line: str


def export(module: fx.GraphModule) -> onnx.ModelProto:
    """Export a region; node names include source lines. Raises ExportFailure.

    Inputs are named `given.NAME`, because the exporter's names have no dots.
    """
    result_specs = [(str(_source(node).target), node.meta["val"]) for node in results_in(module)]
    module = copied(module)
    names = [f"given.{node.name}" for node in inputs_of(module)]
    results = [f"output_{index}" for index in range(len(result_specs))]
    try:
        with quiet(), torch._guards.tracing(None):
            model = exported(_program(module), registry=registry(), input_names=names, output_names=results)
    except Exception as error:  # PyTorch can run anything that the exporter cannot write
        raise ExportFailure(*_blame(error)) from error
    if [value.name for value in model.graph.output] != results:
        raise ExportFailure("", "the exporter returned other outputs than requested")
    for value, (target, like) in zip(model.graph.output, result_specs, strict=True):
        try:
            keep_type(model.graph, value, like)
        except WrongType as wrong:
            raise ExportFailure(target, wrong.detail) from wrong
    _name_for_lines(model.graph.node)
    return model


def origins(model: onnx.ModelProto) -> Mapping[str, Origin]:
    """Map node names to origins."""
    return {node.name: _origin(_metadata(node)) for node in model.graph.node}


def _source(node: fx.Node) -> fx.Node:
    return _source(node.all_input_nodes[0]) if node.target is operator.getitem else node


def _program(module: fx.GraphModule) -> ExportedProgram:
    inputs, results = inputs_of(module), results_in(module)
    signature = graph_signature.ExportGraphSignature(
        [graph_signature.InputSpec(graph_signature.InputKind.USER_INPUT, _argument(node), None) for node in inputs],
        [graph_signature.OutputSpec(graph_signature.OutputKind.USER_OUTPUT, _argument(node), None) for node in results],
    )
    takes, gives = pytree.tree_structure((tuple(inputs), {})), pytree.tree_structure(tuple(results))
    call = ModuleCallEntry(fqn="", signature=ModuleCallSignature(inputs=[], outputs=[], in_spec=takes, out_spec=gives))
    return ExportedProgram(module, module.graph, signature, {}, {}, [call], constants={})


def _argument(node: Any) -> Any:
    if not isinstance(node, fx.Node):
        return graph_signature.ConstantArgument(name="", value=node)
    return (graph_signature.SymIntArgument if is_size(node) else graph_signature.TensorArgument)(name=node.name)


def _blame(error: BaseException) -> tuple[str, str]:
    match, cause = _BLAMED.search(str(error)), error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    message = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return (match[1] if match else ""), f"PyTorch's exporter failed: {message}"


def _name_for_lines(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        line = Path(_origin(_metadata(node)).line).name
        node.name = f"{node.name.removeprefix('node_')}@{line}" if line else node.name.removeprefix("node_")


def _metadata(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _origin(metadata: Mapping[str, str]) -> Origin:
    match = _BLAMED.search(metadata.get("pkg.torch.onnx.fx_node", ""))
    return Origin(match[1] if match else "", line_of(metadata.get("pkg.torch.onnx.stack_trace")))
