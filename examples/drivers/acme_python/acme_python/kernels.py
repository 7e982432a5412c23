"""Kernels of the device; numpy takes the place of the hardware."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def convolution(operation):
    """Return a function for CONV_2D: image [N, C, H, W], filters [O, C/group, kH, kW], bias [O] -> image."""
    top, left, bottom, right = operation.pads
    (down, across), (apart_down, apart_across) = operation.strides, operation.dilations
    group, (outer, inner, height, width) = operation.group, operation.filter.type.dimensions
    size, _, rows, columns = operation.output.type.dimensions
    extent = (height - 1) * apart_down + 1, (width - 1) * apart_across + 1

    def compute(image, filters, bias):
        padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
        windows = sliding_window_view(padded, extent, axis=(2, 3))
        windows = windows[:, :, ::down, ::across, ::apart_down, ::apart_across]
        windows = windows.reshape(size, group, inner, rows, columns, height, width)
        filters = filters.reshape(group, outer // group, inner, height, width)
        result = np.einsum("ngchwij,gocij->ngohw", windows, filters, optimize=True)
        result = result.reshape(size, outer, rows, columns)
        return result if bias is None else result + bias.reshape(-1, 1, 1)

    return compute
