"""What the device computes, an operation a function of attributes and inputs. numpy stands for the hardware."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Attributes = Mapping[str, Any]


def convolution(attributes: Attributes, image: Any, filters: Any, bias: Any = None) -> Any:
    """CONV_2D: image [N, C, H, W], filters [O, C/group, kH, kW], bias [O]."""
    top, left, bottom, right = attributes["pads"]
    (down, across), (apart_down, apart_across) = attributes["strides"], attributes["dilations"]
    outer, inner, height, width = filters.shape
    extent = (height - 1) * apart_down + 1, (width - 1) * apart_across + 1
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(padded, extent, axis=(2, 3))[:, :, ::down, ::across, ::apart_down, ::apart_across]
    size, _, rows, columns = windows.shape[:4]
    group = attributes["group"]
    windows = windows.reshape(size, group, inner, rows, columns, height, width)
    filters = filters.reshape(group, outer // group, inner, height, width)
    result = np.einsum("ngchwij,gocij->ngohw", windows, filters, optimize=True).reshape(size, outer, rows, columns)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def fully_connected(attributes: Attributes, rows: Any, weight: Any, bias: Any = None) -> Any:
    """FULLY_CONNECTED: rows [..., I], weight [O, I], bias [O]."""
    return rows @ weight.T if bias is None else rows @ weight.T + bias


KERNELS: dict[str, Callable[..., Any]] = {
    "ADD": lambda _, x, y: np.add(x, y),
    "CONV_2D": convolution,
    "FULLY_CONNECTED": fully_connected,
    "MUL": lambda _, x, y: np.multiply(x, y),
    "RELU": lambda _, x: np.maximum(x, 0),
    "SUB": lambda _, x, y: np.subtract(x, y),
}
