"""Converters of recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, converter, exporter
from nnadapter.ir import ABSENT, AttributeValue, DataType
from nnadapter.ir.operations.recurrent import FUNCTIONS_PER_DIRECTION, PARAMETERS

_FUNCTIONS: Mapping[str, str] = MappingProxyType({name.replace("_", ""): name for name in PARAMETERS})
"""Lowercase ONNX name -> IR name. ONNX Runtime ignores case."""
_PARAMETERS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "affine": (1.0, 0.0),
        "elu": (1.0, 0.0),
        "hard_sigmoid": (0.2, 0.5),
        "leaky_relu": (0.01, 0.0),
        "scaled_tanh": (1.0, 1.0),
        "thresholded_relu": (1.0, 0.0),
    }
)
"""IR name -> default alpha and beta; 0 for others."""


_DEFAULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
)


_FLAGS: Mapping[str, tuple[str, ...]] = {"LSTM": ("input_forget",), "GRU": ("linear_before_reset",)}
_STATES = (5, 6)
"""Positions of initial states; layout 1 swaps their first two axes."""


@converter("LSTM", 7, 14, 22)
@converter("GRU", 7, 14, 22)
@converter("RNN", 7, 14, 22)
def convert_recurrent(context: ConversionContext, node: OnnxNode) -> None:
    """Convert LSTM, GRU and RNN to the operations of the same names."""
    layout = node.integer("layout", 0)
    if layout not in (0, 1):
        raise invalid(f"attribute 'layout' of {node.op_type} is {layout}; expected 0 or 1")
    _check_hidden_size(context, node)
    inputs = _inputs(context, node, batch_first=layout == 1)
    attributes = _attributes(node)
    if layout == 0:
        context.add(node.op_type, inputs, attributes, node.outputs)
        return
    results = context.add(node.op_type, inputs, attributes)
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    for name, operand, perm in zip(node.outputs, results, orders, strict=False):
        if name:
            context.apply("TRANSPOSE", operand, outputs=(name,), perm=perm)


def _check_hidden_size(context: ConversionContext, node: OnnxNode) -> None:
    units = context.dimensions(node.input(2))[-1:]
    hidden_size = node.integer("hidden_size") if "hidden_size" in node.attributes else "missing"
    if units != (hidden_size,):
        raise invalid(
            f"attribute 'hidden_size' of {node.op_type} is {hidden_size}; expected {list(units)}, the last size of R"
        )


def _inputs(context: ConversionContext, node: OnnxNode, *, batch_first: bool) -> list[int]:
    inputs = []
    for position, name in enumerate(node.inputs):
        operand = context.optional_operand(name)
        if batch_first and operand != ABSENT and (position == 0 or position in _STATES):
            if len(context.dimensions(name)) != 3:
                raise invalid(
                    f"input {position} of {node.op_type} has rank {len(context.dimensions(name))}; expected 3"
                )
            operand = context.apply("TRANSPOSE", operand, perm=(1, 0, 2))
        inputs.append(operand)
    while inputs and inputs[-1] == ABSENT:
        inputs.pop()
    return inputs


def _attributes(node: OnnxNode) -> dict[str, AttributeValue]:
    direction = node.text("direction", "forward")
    names, alphas, betas = _activations(node, 2 if direction == "bidirectional" else 1)
    clip = node.number("clip", float("inf"))
    return {
        "direction": direction,
        "activations": names,
        "activation_alpha": alphas,
        "activation_beta": betas,
        "clip": clip if clip > 0 else float("inf"),
        **{name: node.integer(name, 0) != 0 for name in _FLAGS.get(node.op_type, ())},
    }


def _activations(node: OnnxNode, directions: int) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Return function names, alphas and betas.

    ONNX lists an alpha or beta only for functions that have one.
    """
    count = FUNCTIONS_PER_DIRECTION[node.op_type] * directions
    activations = node.attributes.get("activations", _DEFAULTS[node.op_type] * directions)
    if not isinstance(activations, tuple) or not all(isinstance(name, str) for name in activations):
        raise invalid(f"attribute 'activations' of {node.op_type} is {activations!r}; expected names")
    # The schema's default for RNN has two names, for any direction.
    keys = [name.lower() for name in (activations[:count] if node.op_type == "RNN" else activations)]
    unknown = [name for name in keys if name not in _FUNCTIONS]
    if len(keys) != count or unknown:
        raise invalid(
            f"attribute 'activations' of {node.op_type} is {list(activations)}; "
            f"expected {count} of {sorted(_FUNCTIONS)}"
        )
    functions = [_FUNCTIONS[key] for key in keys]
    alphas, betas = (_values(node, functions, position) for position in (0, 1))
    return " ".join(functions), alphas, betas


def _values(node: OnnxNode, functions: Sequence[str], position: int) -> tuple[float, ...]:
    parameter = ("alpha", "beta")[position]
    stated = iter(node.numbers(f"activation_{parameter}") or ())
    defaults = [_PARAMETERS.get(name, (0.0, 0.0))[position] for name in functions]
    return tuple(
        next(stated, default) if parameter in PARAMETERS[name] else default
        for name, default in zip(functions, defaults, strict=True)
    )


_LENGTHS = 4


@exporter("LSTM", "GRU", "RNN")
def export_recurrent(write: NodeWriter) -> Sequence[str]:
    """Export LSTM, GRU and RNN as ONNX's ops of the same names."""
    of, inputs = write.operation, list(write.inputs)
    if inputs[_LENGTHS]:
        inputs[_LENGTHS] = write.cast(inputs[_LENGTHS], DataType.INT32)
    names = of.activations.split()
    flags = {name: of.attributes[name] for name in _FLAGS.get(of.type, ())}
    return write.nodes(
        of.type,
        inputs,
        len(of.outputs),
        direction=of.direction,
        hidden_size=of.recurrent_weights.type.dimensions[2],
        activations=[name.title().replace("_", "") for name in names],
        activation_alpha=_written_values(names, "alpha", of.activation_alpha),
        activation_beta=_written_values(names, "beta", of.activation_beta),
        clip=of.clip if of.clip < float("inf") else None,
        **flags,  # type: ignore[arg-type]
    )


def _written_values(names: Sequence[str], parameter: str, values: Sequence[float]) -> list[float] | None:
    listed_values = [value for name, value in zip(names, values, strict=False) if parameter in PARAMETERS[name]]
    return listed_values or None
