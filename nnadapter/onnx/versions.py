"""Operator sets and IR versions that something does not know yet: refused, or lowered where that changes no meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import FunctionProto, ModelProto, NodeProto

from nnadapter.errors import InvalidModelError
from nnadapter.onnx.building import copied
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.nodes import key_of, needed_functions, opsets_of, with_nested
from nnadapter.onnx.schemas import since_version
from partition.verdict import Reason, Unsupported


def check_versions(model: ModelProto) -> None:
    """Raise InvalidModelError for an opset of ONNX's own, or an IR version, that the installed onnx does not know.

    Nobody can say what a node means in an opset that has no schemas.
    """
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
    """Return the model with an import for those domains of ONNX Runtime's own that it names and does not import.

    ONNX Runtime loads such models, which its own tools write, and onnx contradicts them.

    Args:
        model: the model.
        domains: of its nodes.
    """
    missing = {MICROSOFT}.intersection(domains) - {entry.domain for entry in model.opset_import}
    if not missing:
        return model
    model_copy = copied(model)
    model_copy.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(missing))
    return model_copy


def stamp_down(model: ModelProto, opset_limits: Mapping[str, int], ir_version_limit: int) -> ModelProto | Unsupported:
    """Return the model with opset imports and IR version lowered to limits, where that changes no node's meaning.

    1. Nothing above a limit: the same object.
    2. Every node of a domain above its limit, in sub-graphs and in the functions that are called, must have a schema
       that is no newer than the limit; the copy then imports the limit, and functions that are not called are left out.
    3. Else the refusal names the first node in the way.

    Args:
        model: the model.
        opset_limits: per domain, the newest operator set allowed; domains that are not named are left alone.
        ir_version_limit: the newest IR version allowed.
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
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"{named} is not known in opset {version}, so it stays there")
    if since <= limit:
        return None
    return Unsupported(Reason.UNSUPPORTED_VERSION, f"{named} is of opset {since}; at most {limit} is accepted")


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
