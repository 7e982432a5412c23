"""The functions that ONNX's own schemas define: how an op is written down in other ops."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.defs

from nnadapter.onnx.building import copied
from nnadapter.onnx.schemas import is_further
from nnadapter.process.cache import remembered


@remembered(1024)
def schema_body(op_type: str, version: int, domain: str) -> onnx.FunctionProto | None:
    """Return the body of an op that is a function whatever its node looks like, None for any other.

    Args:
        op_type: ONNX's name.
        version: of the schema.
        domain: empty for ONNX's own.
    """
    if is_further(domain, op_type, version):
        return None
    schema = onnx.defs.get_schema(op_type, version, domain)
    if not schema.has_function:  # type: ignore[attr-defined]  # the stubs lack it
        return None
    body: onnx.FunctionProto = onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
    return body


def typed_body(
    node: onnx.NodeProto, version: int, domain: str, opset: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return the body of a node that is a function, also where types or attributes decide how it is written down.

    A CastLike after an input of known type is a Cast there, so that constants of the body can be folded.

    Args:
        node: the node.
        version: of its schema.
        domain: empty for ONNX's own.
        opset: what the model imports of that domain.
        types: of the node's inputs, with an empty one for those that are absent.

    Returns:
        None if the op is no function, or says that this node is none.
    """
    if is_further(domain, node.op_type, version):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    if schema.has_function:  # type: ignore[attr-defined]
        plain = schema_body(node.op_type, version, domain)
        return None if plain is None else _with_casts(plain, types)
    if not schema.has_context_dependent_function:  # type: ignore[attr-defined]
        return None
    stated = sorted(schema.context_dependent_function_opset_versions)  # type: ignore[attr-defined]
    chosen = max((opset_version for opset_version in stated if opset_version <= opset), default=stated[0])
    serialized_types = [type_proto.SerializeToString() for type_proto in types]
    try:
        serialized_body = schema.get_context_dependent_function_with_opset_version(  # type: ignore[attr-defined]
            chosen, node.SerializeToString(), serialized_types
        )
    except (RuntimeError, ValueError, IndexError):  # onnx's builders of bodies raise what they like
        return None
    return _with_casts(onnx.FunctionProto.FromString(serialized_body), types) if serialized_body else None


def _with_casts(body: onnx.FunctionProto, types: Sequence[onnx.TypeProto]) -> onnx.FunctionProto:
    element = {name: type_proto.tensor_type.elem_type for name, type_proto in zip(body.input, types, strict=False)}
    body_copy = copied(body)
    for node in body_copy.node:
        to = element.get(node.input[1]) if node.op_type == "CastLike" else None
        if to:
            node.op_type = "Cast"
            del node.input[1:]
            node.attribute.append(onnx.helper.make_attribute("to", to))
    return body_copy
