"""Normalizations in the ops that an opset has, for bodies of several families."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder

_LAYER_NORMALIZATION_SINCE, _AXES_ARE_INPUT_SINCE, _RMS_NORMALIZATION_SINCE = 17, 18, 23


def reduced(body: BodyBuilder, op_type: str, x: str, axes: Sequence[int], *, keepdims: int = 1) -> str:
    """Add a reduction over axes, which are an attribute or an input."""
    if body.opset >= _AXES_ARE_INPUT_SINCE:
        return body.add(op_type, x, body.constant(tuple(axes)), keepdims=keepdims)
    return body.add(op_type, x, axes=list(axes), keepdims=keepdims)


def layer_normalization(
    body: BodyBuilder, x: str, scale: str, bias: str, axes: Sequence[int], dtype: str, outputs: int = 1
) -> tuple[str, ...]:
    """Add a LayerNormalization, by its attribute `epsilon`; the result, then the mean and the inverse deviation.

    Args:
        body: what is written.
        x: what is normalized.
        scale: of the last axes.
        bias: the same, empty where there is none.
        axes: that are normalized over, the last ones, counted from the end.
        dtype: of `x`.
        outputs: 1, or 3.
    """
    epsilon = body.node.number("epsilon", 1e-5)
    if body.opset >= _LAYER_NORMALIZATION_SINCE:
        return body.add_several("LayerNormalization", (x, scale, bias), outputs, axis=axes[0], epsilon=epsilon)
    wide, stash = _widened(body, x, dtype)
    mean = reduced(body, "ReduceMean", wide, axes)
    centered = body.add("Sub", wide, mean)
    variance = reduced(body, "ReduceMean", body.add("Mul", centered, centered), axes)
    deviation = body.add("Sqrt", body.add("Add", variance, body.constant(epsilon, stash)))
    scaled = body.add("Mul", _narrowed(body, body.add("Div", centered, deviation), dtype), scale)
    result = body.add("Add", scaled, bias) if bias else scaled
    return (result,) if outputs == 1 else (result, mean, body.add("Reciprocal", deviation))


def rms_normalization(
    body: BodyBuilder, x: str, scale: str, axes: Sequence[int], dtype: str, outputs: int = 1
) -> tuple[str, ...]:
    """Add an RMSNormalization; the result, then the inverse of the root. See `layer_normalization`."""
    epsilon = body.node.number("epsilon", 1e-5)
    if body.opset >= _RMS_NORMALIZATION_SINCE and outputs == 1:
        return (body.add("RMSNormalization", x, scale, axis=axes[0], epsilon=epsilon),)
    wide, stash = _widened(body, x, dtype)
    mean = reduced(body, "ReduceMean", body.add("Mul", wide, wide), axes)
    root = body.add("Sqrt", body.add("Add", mean, body.constant(epsilon, stash)))
    result = body.add("Mul", _narrowed(body, body.add("Div", wide, root), dtype), scale)
    return (result,) if outputs == 1 else (result, body.add("Reciprocal", root))


def _widened(body: BodyBuilder, x: str, dtype: str) -> tuple[str, str]:
    """What is normalized, and its data type there: half precision has no 1e-12, and no squares of what is above 255."""
    return (body.cast(x, "float32"), "float32") if dtype == "float16" else (x, dtype)


def _narrowed(body: BodyBuilder, x: str, dtype: str) -> str:
    return body.cast(x, dtype) if dtype == "float16" else x
