"""Normal form of a model: supported opsets, sorted nodes, dense constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, SparseTensorProto, helper, numpy_helper

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied, with_nodes
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import key_of, needed_functions, opsets_of, read_nodes, with_nested
from nnadapter.onnx.schemas import MICROSOFT, since_version
from partition.graph import Node, Reason, Unsupported


def check_versions(model: ModelProto) -> None:
    """Raise InvalidModelError for an ONNX opset or IR version unknown to the installed onnx."""
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if not plain_domain(entry.domain) and entry.version > newest:
            raise InvalidModelError(
                f"the model is written in opset {entry.version}, the installed onnx {onnx.__version__} knows up to "
                f"{newest}; update onnx, or export with an older opset"
            )
    if model.ir_version > onnx.IR_VERSION:
        raise InvalidModelError(
            f"the model has IR version {model.ir_version}, the installed onnx {onnx.__version__} knows up to "
            f"{onnx.IR_VERSION}; update onnx, or export again"
        )


def with_imports(model: ModelProto, domains: Iterable[str]) -> ModelProto:
    """Add the import of com.microsoft if `domains` contains it and the model lacks it.

    ONNX Runtime's tools omit it; it loads such models, but onnx rejects them.
    """
    missing = {MICROSOFT}.intersection(domains) - {entry.domain for entry in model.opset_import}
    if not missing:
        return model
    model_copy = copied(model)
    model_copy.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(missing))
    return model_copy


def stamp_down(model: ModelProto, opset_limits: Mapping[str, int], ir_version_limit: int) -> ModelProto | Unsupported:
    """Lower opsets and IR version to limits, or return a refusal if a node's schema is newer.

    Subgraphs and called functions are included; unused functions are omitted. Returns the same object if nothing
    exceeds a limit. Domains not listed are unlimited.
    """
    limits = {plain_domain(domain): limit for domain, limit in opset_limits.items()}
    functions = needed_functions(model.graph.node, {key_of(function): function for function in model.functions})
    scopes = [(model.graph.node, model.opset_import)]
    scopes.extend((function.node, function.opset_import) for function in functions.values())
    above = [_above(imports, limits) for _, imports in scopes]
    if model.ir_version <= ir_version_limit and not any(above):
        return model
    for (nodes, _), versions in zip(scopes, above, strict=True):
        for node in with_nested(nodes):
            if plain_domain(node.domain) in versions and key_of(node) not in functions:
                refusal = _newer(node, versions[plain_domain(node.domain)], limits[plain_domain(node.domain)])
                if refusal is not None:
                    return refusal
    return _lowered(model, functions.values(), limits, ir_version_limit)


def _above(imports: Iterable[onnx.OperatorSetIdProto], limits: Mapping[str, int]) -> dict[str, int]:
    versions = opsets_of(imports).items()
    return {domain: version for domain, version in versions if version > limits.get(domain, version)}


def _newer(node: NodeProto, version: int, limit: int) -> Unsupported | None:
    named = f"node {node.name!r} ({node.op_type})" if node.name else f"a node of type {node.op_type}"
    since = since_version(node.domain, node.op_type, version)
    if since is None:
        return Unsupported(
            Reason.UNSUPPORTED_OPERATION,
            f"{named} is unknown in opset {version}, so the model cannot be converted to an older opset",
        )
    if since <= limit:
        return None
    return Unsupported(Reason.UNSUPPORTED_VERSION, f"{named} needs opset {since}, expected at most opset {limit}")


def _lowered(
    model: ModelProto, functions: Iterable[FunctionProto], limits: Mapping[str, int], ir_version_limit: int
) -> ModelProto:
    copy = copied(model)
    copy.ir_version = min(model.ir_version, ir_version_limit)
    del copy.functions[:]
    copy.functions.extend(functions)
    for imports in (copy.opset_import, *(function.opset_import for function in copy.functions)):
        for entry in imports:
            entry.version = min(entry.version, limits.get(plain_domain(entry.domain), entry.version))
    return copy


def in_order(model: onnx.ModelProto, nodes: Sequence[Node] | None = None) -> onnx.ModelProto:
    """Sort nodes topologically and stably; a sorted model is returned as is. Cycles are reported elsewhere."""
    nodes = read_nodes(model) if nodes is None else nodes
    if _is_ordered(nodes):
        return model
    maker = {name: position for position, node in enumerate(nodes) for name in node.outputs if name}
    dependencies = [{maker[name] for name in node.reads if name in maker} - {at} for at, node in enumerate(nodes)]
    order = _sorted(dependencies)
    if len(order) < len(nodes) or order == [*range(len(nodes))]:
        return model
    return with_nodes(model, (model.graph.node[position] for position in order))


def _is_ordered(nodes: Sequence[Node]) -> bool:
    read: set[str] = set()
    produced_names: set[str] = set()
    for node in nodes:
        read.update(node.reads)
        if not read.isdisjoint(node.outputs) and any(
            name in read and name not in produced_names for name in node.outputs
        ):
            return False
        produced_names.update(node.outputs)
    return True


def _sorted(dependencies: list[set[int]]) -> list[int]:
    """Return a topological order, lowest position first, without nodes on or after a cycle."""
    readers: list[list[int]] = [[] for _ in dependencies]
    for position, makers in enumerate(dependencies):
        for maker in makers:
            readers[maker].append(position)
    waiting = [len(makers) for makers in dependencies]
    ready = [position for position, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        position = heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return order


def with_dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make sparse constants dense; returns the same object if there are none.

    Constants stay sparse if the model outputs them.

    Raises:
        InvalidModelError: malformed sparse tensor, or too large when dense.
    """
    outputs = {value.name for value in model.graph.output if value.type.HasField("sparse_tensor_type")}
    nodes = enumerate(model.graph.node)
    positions = [at for at, node in nodes if _makes_sparse(node) and node.output[0] not in outputs]
    if not model.graph.sparse_initializer and not positions:
        return model
    dense = copied(model)
    del dense.graph.sparse_initializer[:]
    room = limits.SPARSE_BYTES
    for sparse in model.graph.sparse_initializer:
        array = _dense(sparse, sparse.values.name, room)
        room -= array.nbytes
        dense.graph.initializer.append(numpy_helper.from_array(array, sparse.values.name))
    for position in positions:
        node = dense.graph.node[position]
        array = _dense(node.attribute[0].sparse_tensor, node.output[0], room)
        room -= array.nbytes
        node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
    return dense


def _makes_sparse(node: NodeProto) -> bool:
    return (
        node.op_type == "Constant"
        and not node.domain
        and len(node.output) == 1
        and [attribute.name for attribute in node.attribute] == ["sparse_value"]
    )


def _dense(sparse: SparseTensorProto, name: str, room: int) -> Array:
    dimensions = tuple(sparse.dims)
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    except (TypeError, ValueError, KeyError) as error:
        raise _wrong(name, f"cannot be read ({error})") from error
    if min(dimensions, default=0) < 0 or values.ndim != 1 or indices.dtype != np.int64:
        raise _wrong(
            name,
            f"has dimensions {dimensions}, values of shape {values.shape} and {indices.dtype} indices, expected no "
            "negative dimension, a vector of values and int64 indices",
        )
    nbytes = prod(dimensions) * values.itemsize
    if nbytes > room:
        raise _wrong(name, f"takes {nbytes} bytes as a dense tensor, expected at most {room}")
    flat = np.full(prod(dimensions), "", object) if values.dtype == object else np.zeros(prod(dimensions), values.dtype)
    flat[_places(name, indices, values.size, dimensions)] = values
    return flat.reshape(dimensions)


def _places(name: str, indices: Array, count: int, dimensions: tuple[int, ...]) -> Array:
    if indices.shape not in ((count,), (count, len(dimensions))):
        raise _wrong(
            name,
            f"has {count} values, but indices of shape {indices.shape}, expected {(count,)} or "
            f"{(count, len(dimensions))}",
        )
    limits = np.array(dimensions if indices.ndim == 2 else prod(dimensions), np.int64)
    if (indices < 0).any() or (indices >= limits).any():
        raise _wrong(name, f"has indices beyond its shape {dimensions}")
    steps = np.array([prod(dimensions[at + 1 :]) for at in range(len(dimensions))], np.int64)
    return indices @ steps if indices.ndim == 2 else indices


def _wrong(name: str, problem: str) -> InvalidModelError:
    return InvalidModelError(f"sparse tensor {name!r} {problem}; export the model without sparse tensors")
