"""A part of a model as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from nnadapter.onnx.building import model_of
from nnadapter.onnx.graphs import OLDEST_IR
from nnadapter.onnx.nodes import FunctionKey, key_of, needed_functions
from nnadapter.onnx.values import dense_type, dtype_of, sparse_type, type_of
from partition.graph import Graph, GraphError, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxIndex:
    """A model with its parts by name, so that taking a part out costs no more than the part."""

    model: ModelProto
    initializers: Mapping[str, TensorProto] = field(repr=False)
    """Dense initializers; the last one where a name is used twice, as ONNX Runtime takes it."""
    sparse_initializers: Mapping[str, onnx.SparseTensorProto] = field(repr=False)
    types: Mapping[str, TypeProto] = field(repr=False)
    """The types that the model states, containers with all their depth."""
    functions: Mapping[FunctionKey, FunctionProto] = field(repr=False)
    """Model-local functions by domain, name and overload."""

    @classmethod
    def of(cls, model: ModelProto) -> OnnxIndex:
        """Return the index of `model`, which must not be changed afterwards."""
        graph = model.graph
        types = {info.name: info.type for group in (graph.value_info, graph.output, graph.input) for info in group}
        types.update((tensor.name, dense_type(tensor)) for tensor in graph.initializer)
        types.update((sparse.values.name, sparse_type(sparse)) for sparse in graph.sparse_initializer)
        return cls(
            model=model,
            initializers={tensor.name: tensor for tensor in graph.initializer},
            sparse_initializers={sparse.values.name: sparse for sparse in graph.sparse_initializer},
            types=types,
            functions={key_of(function): function for function in model.functions},
        )


def extract(
    index: OnnxIndex,
    graph: Graph,
    nodes: Sequence[int],
    inputs: Sequence[str],
    constants: Sequence[str],
    outputs: Sequence[str],
) -> ModelProto:
    """Return a part of a model as a model of its own.

    1. `nodes` are copied unchanged, in the given order, with the initializers named in `constants`.
    2. Inputs and outputs get the types that `graph.values` knows, else those that the model states; an output of
       unknown type gets none. Containers keep the depth that the model states.
    3. All operator sets are imported as in the model; of its functions only those that the part needs are kept.
    4. The IR version is at least 4, since constants are not inputs of the part. Metadata is left out.

    Args:
        index: the model.
        graph: its graph, as `read_graph` made it.
        nodes: positions of nodes, ascending.
        inputs: values from outside, in the order of the new model's inputs.
        constants: names of initializers.
        outputs: values in the order of the new model's outputs.

    Raises:
        GraphError: a constant has no initializer.
    """
    model = index.model
    part = model_of(
        model,
        (model.graph.node[node] for node in nodes),
        (_typed(index, graph.value(name)) for name in inputs),
        (_typed(index, graph.value(name)) for name in outputs),
        ir_version=max(model.ir_version, OLDEST_IR),
    )
    for name in constants:
        _copy_initializer(index, name, part.graph)
    part.functions.extend(needed_functions(part.graph.node, index.functions).values())
    return part


def _copy_initializer(index: OnnxIndex, name: str, graph: GraphProto) -> None:
    if name in index.initializers:
        graph.initializer.add().CopyFrom(index.initializers[name])
    elif name in index.sparse_initializers:
        graph.sparse_initializer.add().CopyFrom(index.sparse_initializers[name])
    else:
        raise GraphError(f"constant {name!r} has no initializer in the model")


def _typed(index: OnnxIndex, value: Value) -> ValueInfoProto:
    stated = index.types.get(value.name)
    tensor = stated is not None and stated.WhichOneof("value") == "tensor_type"
    same_container = stated is not None and not tensor and dtype_of(stated) == value.dtype
    chosen = stated if same_container else type_of(value) or stated
    return ValueInfoProto(name=value.name, type=chosen)
