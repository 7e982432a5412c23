"""The meanings of operations that read images between their pixels."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting, tensor

_ONNX_ORDER = "Images [N, C, H, W]; no other layout."
_OUTPUT_SHAPE = "(height, width) of what every region becomes, in bins."
_SCALE = "What corners are multiplied by: pixels of `input` per unit of a region."

MEANINGS: Mapping[str, OperationDoc] = {
    "GRID_SAMPLE": OperationDoc(
        summary="Images read at the places that a grid says.",
        formula="output[n, c, y, x] = interpolated(input[n, c], place(grid[n, y, x]))\n"
        "place of a coordinate v on an axis of `size`:\n"
        "  align_corners true:  (v + 1) / 2 * (size - 1)\n"
        "  align_corners false: ((v + 1) * size - 1) / 2\n"
        "nearest: the element at the rounded place, halves to even\n"
        "linear: the two neighbors per axis, with weights 1 - distance\n"
        "cubic: four neighbors per axis, a = -0.75: (a + 2)|d|^3 - (a + 3)|d|^2 + 1 for |d| <= 1,\n"
        "       a|d|^3 - 5a|d|^2 + 8a|d| - 4a for 1 < |d| < 2",
        inputs={
            "input": "Images [N, C, H, W] or volumes [N, C, D, H, W]; no other layout.",
            "grid": "[N, OH, OW, 2] or [N, OD, OH, OW, 3]: places, -1 to 1 from border to border. The last axis holds"
            " (x, y) or (x, y, z): across first.",
        },
        attributes={
            "mode": "How an image is read between pixels. `cubic` is for images alone.",
            "padding_mode": "What lies outside. `zeros`: neighbors outside count as 0. `border`: the nearest element."
            " `reflection`: mirrored at the border.",
            "align_corners": "True: -1 and 1 are the centers of the corner pixels. False: their outer edges.",
        },
        outputs={"output": "[N, C, OH, OW] or [N, C, OD, OH, OW]. The data type of `input`."},
        example=Example(
            (counting(1, 1, 2, 2), tensor([[[[-0.5, -0.5], [0.0, 0.0], [1.0, 0.5]]]])), {"padding_mode": "zeros"}
        ),
        traps=(
            "The grid's last axis is (x, y), while the axes of an image are (y, x).",
            "Reflection mirrors at the centers of the corner pixels if corners align, else at their outer edges;"
            " first the place, then every neighbor.",
            "With `zeros`, a place half a pixel outside still takes its share of the border pixel.",
            "`nearest` rounds the place before it is reflected.",
        ),
        flops="2 * output elements * neighbors per axis ^ spatial axes (1, 2 and 4 per axis for nearest, linear and"
        " cubic)",
    ),
    "AFFINE_GRID": OperationDoc(
        summary="The grid for GRID_SAMPLE of an affine map.",
        formula="output[n, y, x] = input[n] @ (px, py, 1)\n"
        "p of index i on an axis of `size`: align_corners: 2 * i / (size - 1) - 1; else: (2 * i + 1) / size - 1",
        inputs={"input": "Matrices [N, 2, 3] for images, [N, 3, 4] for volumes."},
        attributes={
            "output_shape": "Sizes of the grid, (height, width) or (depth, height, width); above 1 if corners align.",
            "align_corners": "True: -1 and 1 are the centers of the corner pixels. False: their outer edges.",
        },
        outputs={"output": "[N, height, width, 2] or [N, depth, height, width, 3]. The data type of `input`."},
        example=Example((tensor([[[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]]]),), {"output_shape": (1, 2)}),
        traps=(
            "Coordinates are (x, y) or (x, y, z), across first, in rows and columns of the matrix and in the result.",
            "`output_shape` has spatial sizes alone: ONNX's `size` has batch and channels in front.",
        ),
        flops="2 * output elements * columns of a matrix",
    ),
    "ROI_ALIGN": OperationDoc(
        summary="Regions of images, read at places between pixels, each in equally many bins.",
        formula="region = regions[r] * spatial_scale, less 0.5 if half_pixel: (left, top, right, bottom)\n"
        "height = bottom - top, width = right - left; at least 1 unless half_pixel\n"
        "samples of bin b down: top + (b + (s + 0.5) / count) * height / bins, s = 0 to count - 1; across alike\n"
        "count = sampling_ratio, or ceil(height / bins) where that is 0; across alike\n"
        "output[r, c, y, x] = mean over the samples of bin (y, x) of linear interpolation in"
        " input[batch_indices[r], c]",
        inputs={
            "input": _ONNX_ORDER,
            "regions": "[R, 4]: (left, top, right, bottom).",
            "batch_indices": "[R]: which image each region is in.",
        },
        attributes={
            "output_shape": _OUTPUT_SHAPE,
            "spatial_scale": _SCALE,
            "sampling_ratio": "Samples of a bin along each axis; 0: as many as the bin has pixels, rounded up.",
            "mode": "`avg`: the mean of all samples. `max`: the largest of all weighed neighbors of all samples.",
            "half_pixel": "True: pixel centers are at 0.5, so corners move by -0.5. False: no shift, and regions have"
            " at least one pixel.",
        },
        outputs={"output": "[R, C, height, width]. The data type of `input`."},
        example=Example(
            (counting(1, 1, 3, 3), tensor([[0.0, 0.0, 2.0, 2.0]]), tensor([0])),
            {"output_shape": (1, 2), "sampling_ratio": 1},
        ),
        traps=(
            "`max` takes the largest single neighbor times its weight, before neighbors are added up, as ONNX Runtime"
            " does.",
            "A sample above -1 or below the size in both axes counts, and is moved into the image; one further out"
            " is 0, and still counts in the mean.",
            "With half_pixel, a region may be empty or turned around: without samples its bins are 0.",
            "spatial_scale comes before the shift.",
        ),
    ),
    "MAX_ROI_POOL": OperationDoc(
        summary="The largest element of each bin of regions of images.",
        formula="corner = floor(|c| * spatial_scale + 0.5), with the sign of c, for each number c of a region\n"
        "step = max(bottom - top + 1, 1) / bins; rows of bin b: floor(b * step) + top up to and without"
        " ceil((b + 1) * step) + top,\n"
        "       within 0 to H; columns alike\n"
        "output[r, c, y, x] = max of input[regions[r, 0], c, rows, columns], 0 where there is none",
        inputs={"input": _ONNX_ORDER, "regions": "[R, 5]: (batch, left, top, right, bottom)."},
        attributes={"output_shape": _OUTPUT_SHAPE, "spatial_scale": _SCALE},
        outputs={"output": "[R, C, height, width]. The data type of `input`."},
        example=Example((counting(1, 1, 3, 3), tensor([[0.0, 0.0, 0.0, 2.0, 1.0]])), {"output_shape": (2, 2)}),
        traps=(
            "The right and bottom corners belong to the region.",
            "Bins may overlap by a row or a column.",
            "A bin without an element gives 0, not the smallest number.",
            "The number of the image is a float, the first of the five.",
        ),
    ),
    "DEFORMABLE_CONV_2D": OperationDoc(
        summary="A convolution whose taps are moved, each by an offset of its own, and may be weighed.",
        formula="output[n, o, y, x] = bias[o] + sum over c, i, j of filter[o, c, i, j] * m * sampled(input[n, k],"
        " place)\n"
        "k = g * C/group + c with g = floor(o / (O/group)); q = floor(k / (C / offset_group)); t = (q * kH + i) * kW"
        " + j\n"
        "place = (y * down + i * dilation_down - top + offset[n, 2 * t, y, x],\n"
        "         x * across + j * dilation_across - left + offset[n, 2 * t + 1, y, x])\n"
        "m = mask[n, t, y, x], or 1; sampled: linear interpolation, with 0 outside",
        inputs={
            "input": _ONNX_ORDER,
            "filter": "[O, C/group, kH, kW].",
            "offset": "[N, offset_group * kH * kW * 2, OH, OW]: for every tap (down, across), in pixels.",
            "bias": "[O], added to every pixel of channel o.",
            "mask": "[N, offset_group * kH * kW, OH, OW]: factors of the taps.",
        },
        attributes={
            "strides": "(down, across): how far the window moves.",
            "pads": "(top, left, bottom, right): zeros around the input.",
            "dilations": "(down, across): distance of two taps before they are moved.",
            "group": "In how many shares channels are kept apart, as in CONV_2D.",
            "offset_group": "In how many shares input channels have offsets of their own.",
        },
        outputs={"output": "[N, O, OH, OW], sizes as in CONV_2D. The data type of `input`."},
        example=Example(
            (
                counting(1, 1, 2, 2),
                tensor([[[[2.0]]]]),
                tensor([[[[0.5, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.5]]]]),
            )
        ),
        traps=(
            "Offsets are (down, across) for each tap, taps in row-major order, offset groups outermost.",
            "A neighbor outside is 0; a place half outside takes its share of what is inside.",
            "The bias stands before the mask among the inputs.",
        ),
        flops="as CONV_2D, and 8 for every element of every window",
    ),
}
"""By operation."""
