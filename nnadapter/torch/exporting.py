"""Export of a region as an ONNX model, and source lines of its operators.

A region's graph as an ONNX model, by PyTorch's own exporter.

The graph is in ATen already, with types and sizes for every node. So it is handed over as an exported program, which
the exporter does not trace again from source: open sizes and lines of source stay as they are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from nnadapter.torch_models.exporter import WrongType, exported, keep_type
from nnadapter.torch_models.operators import is_size, registry
from nnadapter.torch_models.requirements import quiet

if TYPE_CHECKING:
    import onnx


_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_PYTORCH = str(Path(torch.__file__).parent)


def line_of(stack_trace: str | None) -> str:
    """Return `FILE:LINE` of the innermost call outside of PyTorch in a stack trace as text; empty if there is none."""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(stack_trace or "")]
    outside = [f"{file}:{line}" for file, line in frames if not file.startswith(_PYTORCH)]
    return outside[-1] if outside else ""


def short(line: str) -> str:
    """Return `FILE:LINE` without folders."""
    return Path(line).name if line else ""


_BLAMED = re.compile(r"target=torch\.ops\.([\w.]+)\]")


class ExportFailure(Exception):  # noqa: N818  it says why, and is always caught
    """The exporter failed at an operator."""

    def __init__(self, target: str, detail: str) -> None:
        super().__init__(detail)
        self.target = target
        """The operator as `aten.NAME.OVERLOAD`; empty where the exporter does not say which."""
        self.detail = detail
        """What it said."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a node of a model comes from."""

    operator: str
    """As `aten.NAME.OVERLOAD`."""
    line: str
    """`FILE:LINE`; empty where it is not known."""


def export(module: fx.GraphModule) -> onnx.ModelProto:
    """Return the ONNX model of a region, with inputs `given.NAME`, outputs `output_0` on, and nodes named for lines.

    The exporter gives names of Python to what it makes, which have no dots.

    Raises:
        ExportFailure: the exporter fails.
    """
    result_specs = [(str(_source(node).target), node.meta["val"]) for node in _results(module)]
    module = _copied(module)
    names = [f"given.{node.name}" for node in module.graph.find_nodes(op="placeholder")]
    results = [f"output_{index}" for index in range(len(result_specs))]
    try:
        with quiet(), torch._guards.tracing(None):
            model = exported(_program(module), registry=registry(), input_names=names, output_names=results)
    except Exception as error:  # whatever the exporter cannot write, PyTorch can run
        raise ExportFailure(*_blame(error)) from error
    if [value.name for value in model.graph.output] != results:
        raise ExportFailure("", "the exporter gave other outputs than it was asked for")
    for value, (target, like) in zip(model.graph.output, result_specs, strict=True):
        try:
            keep_type(model.graph, value, like)
        except WrongType as wrong:
            raise ExportFailure(target, wrong.detail) from wrong
    _name_for_lines(model.graph.node)
    return model


def origins(model: onnx.ModelProto) -> Mapping[str, Origin]:
    """Return what each node of an exported model comes from, by the node's name."""
    return {node.name: _origin(_metadata(node)) for node in model.graph.node}


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """The exporter changes what nodes say of their values."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _source(node: fx.Node) -> fx.Node:
    """The operator that gives a result, or several with it."""
    return _source(node.all_input_nodes[0]) if node.target is operator.getitem else node


def _results(module: fx.GraphModule) -> Sequence[Any]:
    results: Sequence[Any] = module.graph.output_node().args[0]
    return results


def _program(module: fx.GraphModule) -> ExportedProgram:
    inputs, results = module.graph.find_nodes(op="placeholder"), _results(module)
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, _argument(node), None) for node in inputs],
        [OutputSpec(OutputKind.USER_OUTPUT, _argument(node), None) for node in results],
    )
    takes, gives = pytree.tree_structure((tuple(inputs), {})), pytree.tree_structure(tuple(results))
    call = ModuleCallEntry(fqn="", signature=ModuleCallSignature(inputs=[], outputs=[], in_spec=takes, out_spec=gives))
    return ExportedProgram(module, module.graph, signature, {}, {}, [call], constants={})


def _argument(node: Any) -> Any:
    if not isinstance(node, fx.Node):
        return ConstantArgument(name="", value=node)
    return (SymIntArgument if is_size(node) else TensorArgument)(name=node.name)


def _blame(error: BaseException) -> tuple[str, str]:
    """The operator that is at fault, and what was said of it: the innermost cause says most."""
    match, cause = _BLAMED.search(str(error)), error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    message = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return (match[1] if match else ""), f"PyTorch's exporter failed: {message}"


def _name_for_lines(nodes: Iterable[onnx.NodeProto]) -> None:
    """Put the line of source behind each node's name, where reports and rules see it."""
    for node in nodes:
        line = short(_origin(_metadata(node)).line)
        node.name = f"{node.name.removeprefix('node_')}@{line}" if line else node.name.removeprefix("node_")


def _metadata(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _origin(metadata: Mapping[str, str]) -> Origin:
    match = _BLAMED.search(metadata.get("pkg.torch.onnx.fx_node", ""))
    return Origin(match[1] if match else "", line_of(metadata.get("pkg.torch.onnx.stack_trace")))
