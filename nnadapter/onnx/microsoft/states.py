"""Layers that carry a state along a sequence: causal convolution, linear attention, and what computes its gates."""

from __future__ import annotations

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.activations import silu
from nnadapter.onnx.microsoft.axes import sliced
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_END = 2**31 - 1
_ELSEWHERE = {
    "input_channel_offset": 0,
    "input_channels": 0,
    "state_channels_last": -1,
    "state_length": 0,
    "state_update_capacity": 0,
}
"""Attributes with which ONNX Runtime has no kernel on the CPU."""

_STATES_SINCE = 27
"""The first opset with CausalConvWithState and LinearAttention."""


@function_op(
    "LinearAttention",
    "query key value past_state? decay? beta?",
    "output present_state",
    {
        "chunk_size": 64,
        "kv_num_heads": int,
        "q_num_heads": int,
        "scale": 0.0,
        "state_window": 0,
        "update_rule": "gated_delta",
    },
    required=("q_num_heads", "kv_num_heads"),
    newest=_STATES_SINCE,
)
def linear_attention_body(body: BodyBuilder) -> tuple[str, ...]:
    """LinearAttention, also with fewer heads of queries than of values. Source: com.microsoft LinearAttention-1.

    1. Every head of queries, and of keys where these are as few, is repeated for the values that share it.
    2. Refused: several states (`state_window`); opsets without LinearAttention, which have nothing to say it in.
    """
    node, heads, groups = body.node, body.node.integer("q_num_heads"), body.node.integer("kv_num_heads")
    if node.integer("state_window", 0):
        raise body.unsupported("state_window", f"is {node.integer('state_window')}; expected 0")
    if body.opset < _STATES_SINCE:
        raise Refusal(
            Reason.UNSUPPORTED_VERSION, f"the body of LinearAttention needs opset {_STATES_SINCE}, got {body.opset}"
        )
    names = [body.input(position) for position in range(6)]
    if 0 < heads < groups:
        names[:2] = [_repeated(body, position, heads, groups) for position in (0, 1)]
    stated = {name: node.attributes.get(name) for name in ("chunk_size", "scale", "update_rule")}
    stated |= {"q_num_heads": max(heads, groups), "kv_num_heads": groups}
    return body.add_several("LinearAttention", names, 2, **stated)


def _repeated(body: BodyBuilder, position: int, heads: int, groups: int) -> str:
    """[B, T, heads * depth] as [B, T, groups * depth], every head as often as groups share it."""
    queries, width, name = body.inputs.width(0), body.inputs.width(position), body.input(position)
    if queries is None or width is None or queries % heads or groups % heads:
        raise body.invalid(f"has {heads} heads of queries of {queries} features for {groups} heads of values")
    depth = queries // heads
    if width == groups * depth:
        return name
    apart = body.reshape(name, 0, 0, heads, 1, depth)
    tiled = body.add("Tile", apart, body.constant((1, 1, 1, groups // heads, 1)))
    return body.reshape(tiled, 0, 0, groups * depth)


@function_op(
    "CausalConvWithState",
    "input weight bias? past_state?",
    "output present_state state_update?",
    {
        **_ELSEWHERE,
        "activation": "none",
        "channels_last": 0,
        "dilation": 1,
        "ndim": 1,
        "state_window": 0,
    },
    newest=_STATES_SINCE,
)
def causal_conv_with_state_body(body: BodyBuilder) -> tuple[str, ...]:
    """A convolution per channel that looks back only, behind what it saw before.

    Source: com.microsoft CausalConvWithState-1. Refused: several axes, several states, what has no kernel on the CPU.
    """
    _refuse_forms(body)
    last, dilation = body.node.integer("channels_last", 0), body.node.integer("dilation", 1)
    activation = body.node.text("activation", "none")
    if body.opset >= _STATES_SINCE and not last and dilation == 1:
        inputs = tuple(body.input(position) for position in range(4))
        return body.add_several("CausalConvWithState", inputs, 2, activation=activation)
    channels, taps = body.inputs.width(1, 0), body.inputs.width(1, 2)
    if channels is None or taps is None:
        raise body.invalid("has a filter of unknown size")
    x, past = (_channels_first(body, position) if last else body.input(position) for position in (0, 3))
    length = (taps - 1) * dilation
    seen = body.add("Concat", past, x, axis=2) if past else _padded(body, x, length)
    made = body.add("Conv", seen, body.input(1), body.input(2), group=channels, dilations=[dilation])
    present = sliced(body, seen, 2, -length, _END) if length else sliced(body, seen, 2, 0, 0)
    if activation != "none":
        made = silu(body, made)
    if last:
        return _as_given(body, made), _as_given(body, present)
    return made, present


def _refuse_forms(body: BodyBuilder) -> None:
    for name, usual in {**_ELSEWHERE, "state_window": 0, "ndim": 1}.items():
        if (stated := body.node.integer(name, usual)) != usual:
            raise body.unsupported(name, f"is {stated}; expected {usual}")
    if (activation := body.node.text("activation", "none")) not in ("none", "silu", "swish"):
        raise body.invalid(f"has attribute 'activation' {activation!r}; expected none, silu or swish")


def _padded(body: BodyBuilder, x: str, length: int) -> str:
    """Zeros in front of a sequence."""
    zero = body.constant(0.0, body.inputs.dtype())
    return body.add("Pad", x, body.constant((0, 0, length, 0, 0, 0)), zero) if length else x


def _channels_first(body: BodyBuilder, position: int) -> str:
    """[B, S, d, ...] as [B, C, S]; empty where it is absent."""
    name = body.input(position)
    if not name:
        return ""
    flat = name if body.inputs.rank(position) == 3 else body.reshape(name, 0, 0, body.inputs.width(1, 0) or -1)
    return body.add("Transpose", flat, perm=(0, 2, 1))


def _as_given(body: BodyBuilder, x: str) -> str:
    """[B, C, S] as [B, S, d, ...], the last axes those of the input."""
    turned, rank = body.add("Transpose", x, perm=(0, 2, 1)), body.inputs.rank(0)
    if rank == 3:
        return turned
    sizes = [body.inputs.width(0, axis) for axis in range(2, rank)]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return body.reshape(turned, 0, 0, *known)
    channels = sliced(body, body.add("Shape", body.input(0)), 0, 2, rank)
    return body.add("Reshape", turned, body.add("Concat", body.constant((0, 0)), channels, axis=0))


@function_op("LinearAttentionGate", "a dt_bias decay_scale b?", "decay beta?")
def linear_attention_gate_body(body: BodyBuilder) -> tuple[str, ...]:
    """How fast a state fades, and how much of a token it takes. Source: com.microsoft LinearAttentionGate-1."""
    dtype = body.inputs.dtype(0)
    shifted = body.add("Add", body.cast(body.input(0), "float32"), body.input(1))
    decay = body.cast(body.add("Mul", body.add("Softplus", shifted), body.input(2)), dtype)
    if not body.input(3):
        return decay, ""
    return decay, body.cast(body.add("Sigmoid", body.cast(body.input(3), "float32")), dtype)
