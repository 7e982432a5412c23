"""How many windows fit along an axis: the arithmetic that convolution and pooling share."""

from __future__ import annotations

from nnadapter.errors import InvalidModelError


def window_count(name: str, padded: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the number of whole windows along an axis of `padded` elements.

    Source: ONNX Conv-11, output size rounded down.

    Raises:
        InvalidModelError: not even one window fits.
    """
    extent = (kernel - 1) * dilation + 1
    if padded < extent:
        raise InvalidModelError(
            f"{name} with padding is {padded}, expected at least {extent}, "
            f"the extent of a kernel of {kernel} with dilation {dilation}"
        )
    return (padded - extent) // stride + 1


def window_count_ceil(name: str, size: int, begin: int, end: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the number of windows, a last partial one included if it starts in the input or the padding before it.

    Source: ONNX MaxPool-22 and AveragePool-22, `ceil_mode`.

    Raises:
        InvalidModelError: not even a partial window fits.
    """
    extent = (kernel - 1) * dilation + 1
    count = -((extent - size - begin - end) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    if size < 1 or count < 1:
        raise InvalidModelError(f"{name} is {size}, expected at least part of a window of extent {extent}")
    return count
