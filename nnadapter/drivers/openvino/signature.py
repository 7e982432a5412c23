"""The ports of a compiled ONNX model, and whether they are what ONNX says of its outputs."""

from __future__ import annotations

from typing import Any

import onnx

from nnadapter.drivers.openvino.ports import Ports, dtype_of, output_of, outputs_of
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.values import value_of
from partition.graph import Value


def signature_of(compiled: Any, model: onnx.ModelProto) -> Ports:
    """Return the signature of a compiled model.

    Raises:
        ValueError: it has other inputs or outputs than the ONNX model.
    """
    wrong = difference(model, compiled)
    if wrong:
        raise ValueError(wrong)
    return Ports(_inputs_of(compiled, model), outputs_of(compiled))


def _inputs_of(compiled: Any, model: onnx.ModelProto) -> tuple[int | None, ...]:
    """The port of every input.

    The engine drops inputs that nothing needs, and gives one that is an output as well the output's name. The order
    stays.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    ports = {name: number for number, port in enumerate(compiled.inputs) for name in port.get_names() if name in names}
    read = {name for node in model.graph.node for name in (*node.input, *captured_names(node))}
    lost = [name for name in names if name not in ports and name in read]
    renamed = [number for number in range(len(compiled.inputs)) if number not in ports.values()]
    if renamed and len(renamed) != len(lost):
        raise ValueError(f"OpenVINO has {len(renamed)} inputs of other names for {', '.join(map(repr, lost))}")
    ports.update(zip(lost, renamed, strict=False))
    return tuple(ports.get(name) for name in names)


def difference(expected: onnx.ModelProto, engine_model: Any) -> str:
    """Return how the outputs of the engine's model differ from those that ONNX says, as far as it says; or nothing."""
    if len(engine_model.outputs) != len(expected.graph.output):
        return f"OpenVINO makes {len(engine_model.outputs)} outputs, ONNX says {len(expected.graph.output)}"
    return next(filter(None, map(_mismatch, expected.graph.output, engine_model.outputs)), "")


def _mismatch(info: onnx.ValueInfoProto, port: Any) -> str:
    value = value_of(info)
    if _is_as_said(value, port):
        return ""
    if port.partial_shape.rank.is_dynamic or (value.static_shape is not None and port.partial_shape.is_dynamic):
        return f"OpenVINO does not know the shape of {value.name!r} before the run: {port.partial_shape}"
    output = output_of(port)
    if value.shape is not None and len(value.shape) != len(output.shape):
        return f"OpenVINO makes {len(output.shape)} dimensions of {value.name!r}, ONNX says {len(value.shape)}"
    if value.dtype not in (None, output.dtype):
        return f"OpenVINO makes {output.dtype} of {value.name!r}, ONNX says {value.dtype}"
    if value.shape is not None and any(map(_is_other_size, output.shape, value.shape)):
        return f"OpenVINO makes {list(output.shape)} of {value.name!r}, ONNX says {list(value.shape)}"
    return ""


def _is_other_size(engine_size: int | None, declared_size: int | str | None) -> bool:
    return engine_size is not None and isinstance(declared_size, int) and engine_size != declared_size


def _is_as_said(value: Value, port: Any) -> bool:
    """Whether all is known of a value, and the engine makes it; its dimensions one by one take longer than in words."""
    shape = value.static_shape
    return (
        shape is not None
        and port.partial_shape.to_string() == f"[{','.join(map(str, shape))}]"
        and (value.dtype == dtype_of(port))
    )
