"""Converters of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, converter, exporter
from nnadapter.ir import ABSENT, AttributeValue, DataType
from nnadapter.ir.operations.recurrent import FUNCTIONS_PER_DIRECTION, PARAMETERS

_FUNCTIONS: Mapping[str, tuple[str, float, float]] = MappingProxyType(
    {
        "affine": ("affine", 1.0, 0.0),
        "elu": ("elu", 1.0, 0.0),
        "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
        "leakyrelu": ("leaky_relu", 0.01, 0.0),
        "relu": ("relu", 0.0, 0.0),
        "scaledtanh": ("scaled_tanh", 1.0, 1.0),
        "sigmoid": ("sigmoid", 0.0, 0.0),
        "softplus": ("softplus", 0.0, 0.0),
        "softsign": ("softsign", 0.0, 0.0),
        "tanh": ("tanh", 0.0, 0.0),
        "thresholdedrelu": ("thresholded_relu", 1.0, 0.0),
    }
)
"""Lowercase name, since ONNX Runtime ignores case -> IR name, default alpha, default beta."""


_HAS_ALPHA = frozenset({"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"})


_HAS_BETA = frozenset({"affine", "hardsigmoid", "scaledtanh"})


_DEFAULTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
)


_STATES = (5, 6)
"""Positions of initial states; layout 1 swaps their first two axes."""


@converter("LSTM", 7, 14, 22)
def convert_lstm(context: ConversionContext, node: OnnxNode) -> None:
    """Convert LSTM (7, 14, 22) to LSTM."""
    _add(context, node, {"input_forget": node.integer("input_forget", 0) != 0})


@converter("GRU", 7, 14, 22)
def convert_gru(context: ConversionContext, node: OnnxNode) -> None:
    """Convert GRU (7, 14, 22) to GRU."""
    _add(context, node, {"linear_before_reset": node.integer("linear_before_reset", 0) != 0})


@converter("RNN", 7, 14, 22)
def convert_rnn(context: ConversionContext, node: OnnxNode) -> None:
    """Convert RNN (7, 14, 22) to RNN."""
    _add(context, node, {})


def _add(context: ConversionContext, node: OnnxNode, extra_attributes: Mapping[str, AttributeValue]) -> None:
    layout = node.integer("layout", 0)
    if layout not in (0, 1):
        raise invalid(f"attribute 'layout' of {node.op_type} is {layout}; expected 0 or 1")
    _check_hidden_size(context, node)
    inputs = _inputs(context, node, batch_first=layout == 1)
    attributes = {**_attributes(node), **extra_attributes}
    if layout == 0:
        context.add(node.op_type, inputs, attributes, node.outputs)
        return
    results = context.add(node.op_type, inputs, attributes)
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    for name, operand, perm in zip(node.outputs, results, orders, strict=False):
        if name:
            context.add("TRANSPOSE", (operand,), {"perm": perm}, (name,))


def _check_hidden_size(context: ConversionContext, node: OnnxNode) -> None:
    """Check `hidden_size`: ONNX Runtime requires it, although weights imply it."""
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
                raise invalid(f"input {position} of {node.op_type} does not have three dimensions")
            (operand,) = context.add("TRANSPOSE", (operand,), {"perm": (1, 0, 2)})
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
    }


def _activations(node: OnnxNode, directions: int) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Return function names, alphas and betas.

    Attributes only list values for functions with that parameter.
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
    alphas, betas = iter(node.numbers("activation_alpha") or ()), iter(node.numbers("activation_beta") or ())
    names = " ".join(_FUNCTIONS[key][0] for key in keys)
    return names, _values(keys, alphas, _HAS_ALPHA, 1), _values(keys, betas, _HAS_BETA, 2)


def _values(
    keys: Sequence[str], explicit_values: Iterator[float], having: frozenset[str], column: int
) -> tuple[float, ...]:
    return tuple(
        next(explicit_values, float(_FUNCTIONS[key][column])) if key in having else float(_FUNCTIONS[key][column])
        for key in keys
    )


_NAMES: Mapping[str, str] = {
    "affine": "Affine",
    "elu": "Elu",
    "hard_sigmoid": "HardSigmoid",
    "leaky_relu": "LeakyRelu",
    "relu": "Relu",
    "scaled_tanh": "ScaledTanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
    "thresholded_relu": "ThresholdedRelu",
}


_LENGTHS = 4
"""Position of sequence lengths, in ONNX and the IR."""


@exporter("LSTM", "GRU", "RNN")
def export_recurrent(write: NodeWriter) -> Sequence[str]:
    """Export LSTM, GRU and RNN as ONNX's (22)."""
    of, inputs = write.operation, list(write.inputs)
    if inputs[_LENGTHS]:
        inputs[_LENGTHS] = write.cast(inputs[_LENGTHS], DataType.INT32)
    names = of.activations.split()
    flags = {name: of.attributes[name] for name in ("input_forget", "linear_before_reset") if name in of.attributes}
    return write.nodes(
        of.type,
        inputs,
        len(of.outputs),
        direction=of.direction,
        hidden_size=of.recurrent_weights.type.dimensions[2],
        activations=[_NAMES[name] for name in names],
        activation_alpha=_written_values(names, "alpha", of.activation_alpha),
        activation_beta=_written_values(names, "beta", of.activation_beta),
        clip=of.clip if of.clip < float("inf") else None,
        **flags,  # type: ignore[arg-type]
    )


def _written_values(names: Sequence[str], parameter: str, values: Sequence[float]) -> list[float] | None:
    listed_values = [value for name, value in zip(names, values, strict=False) if parameter in PARAMETERS[name]]
    return listed_values or None
