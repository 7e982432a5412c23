"""What goes in and out of a program: the engine's ports in the order of the ONNX model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnadapter.ir.operand import dtype_name


class Output(NamedTuple):
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


class Ports(NamedTuple):
    """The ports of a program."""

    inputs: tuple[int | None, ...]
    """For every input of the model, the number of its port; None where the engine needs it not."""
    outputs: tuple[Output, ...]

    def to_dict(self) -> dict[str, Any]:
        """The signature as plain data."""
        return {"inputs": list(self.inputs), "outputs": [[output.dtype, list(output.shape)] for output in self.outputs]}


def ports_from(data: Mapping[str, Any]) -> Ports:
    """Return what `Ports.to_dict` gave.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    inputs = tuple(None if port is None else int(port) for port in data["inputs"])
    shapes = [tuple(None if size is None else int(size) for size in shape) for _, shape in data["outputs"]]
    dtypes = [str(dtype) for dtype, _ in data["outputs"]]
    return Ports(inputs, tuple(map(Output, dtypes, shapes)))


def outputs_of(model: Any) -> tuple[Output, ...]:
    """Return the outputs of one of the engine's models.

    Raises:
        ValueError: a rank is not known.
    """
    return tuple(output_of(port) for port in model.outputs)


def fits(signature: Ports, ports: Sequence[Any], outputs: Sequence[Output]) -> bool:
    """Whether a signature that was read belongs to a program with these input ports and outputs."""
    input_ports = [port for port in signature.inputs if port is not None]
    return sorted(input_ports) == list(range(len(ports))) and signature.outputs == tuple(outputs)


def output_of(port: Any) -> Output:
    """Return one output port.

    Raises:
        ValueError: its rank is not known.
    """
    if port.partial_shape.rank.is_dynamic:
        raise ValueError("the rank of an output is not known before the run")
    sizes = tuple(size.get_length() if size.is_static else None for size in port.partial_shape)
    return Output(dtype_of(port), sizes)


def dtype_of(port: Any) -> str:
    """Return the data type of a port, as numpy calls it."""
    # The engine's boolean is a byte for its own Python interface.
    is_boolean = port.element_type.get_type_name() == "boolean"
    return dtype_name(np.dtype(bool if is_boolean else port.element_type.to_dtype()))
