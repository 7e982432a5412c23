"""What goes in and out of a program: the engine's ports in the order of the ONNX model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.values import value_of


@dataclass(frozen=True, slots=True)
class Output:
    """One output port; its number is its place in the model's outputs."""

    dtype: str
    """As numpy calls it."""
    shape: tuple[int | None, ...]
    """None stands for a size that is not known before the run."""

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape, if all of it is known before the run."""
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a program."""

    inputs: tuple[int | None, ...]
    """For every input of the model, the number of its port; None where the engine needs it not."""
    outputs: tuple[Output, ...]

    def to_dict(self) -> dict[str, Any]:
        """The signature as plain data."""
        return {"inputs": list(self.inputs), "outputs": [[each.dtype, list(each.shape)] for each in self.outputs]}


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


def signature_from(data: Mapping[str, Any]) -> Ports:
    """Return what `Signature.to_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    inputs = tuple(None if each is None else int(each) for each in data["inputs"])
    shapes = [tuple(None if size is None else int(size) for size in shape) for _, shape in data["outputs"]]
    dtypes = [str(dtype) for dtype, _ in data["outputs"]]
    return Ports(inputs, tuple(map(Output, dtypes, shapes)))


def outputs_of(model: Any) -> tuple[Output, ...]:
    """Return the outputs of one of the engine's models.

    Raises:
        ValueError: a rank is not known.
    """
    return tuple(_output(port) for port in model.outputs)


def difference(expected: onnx.ModelProto, engine_model: Any) -> str:
    """Return how the outputs of the engine's model differ from those that ONNX says, as far as it says; or nothing."""
    if len(engine_model.outputs) != len(expected.graph.output):
        return f"OpenVINO makes {len(engine_model.outputs)} outputs, ONNX says {len(expected.graph.output)}"
    return next(filter(None, map(_mismatch, expected.graph.output, engine_model.outputs)), "")


def _output(port: Any) -> Output:
    if port.partial_shape.rank.is_dynamic:
        raise ValueError("the rank of an output is not known before the run")
    sizes = tuple(size.get_length() if size.is_static else None for size in port.partial_shape)
    return Output(np.dtype(_array_type(port)).name, sizes)


def _array_type(port: Any) -> Any:
    # The engine's boolean is a byte for its own Python interface.
    return bool if port.element_type.get_type_name() == "boolean" else port.element_type.to_dtype()


def _mismatch(info: onnx.ValueInfoProto, port: Any) -> str:
    value = value_of(info)
    if port.partial_shape.rank.is_dynamic or (value.static_shape is not None and port.partial_shape.is_dynamic):
        return f"OpenVINO does not know the shape of {value.name!r} before the run: {port.partial_shape}"
    made = _output(port)
    if value.shape is not None and len(value.shape) != len(made.shape):
        return f"OpenVINO makes {len(made.shape)} dimensions of {value.name!r}, ONNX says {len(value.shape)}"
    if value.dtype not in (None, made.dtype):
        return f"OpenVINO makes {made.dtype} of {value.name!r}, ONNX says {value.dtype}"
    if value.static_shape not in (None, made.shape):
        return f"OpenVINO makes {list(made.shape)} of {value.name!r}, ONNX says {list(value.static_shape or ())}"
    return ""


def fits(signature: Ports, ports: Sequence[Any], outputs: Sequence[Output]) -> bool:
    """Whether a signature that was read belongs to a program with these input ports and outputs."""
    used = [each for each in signature.inputs if each is not None]
    return sorted(used) == list(range(len(ports))) and signature.outputs == tuple(outputs)
