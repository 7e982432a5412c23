"""The meanings of resizing by sampling."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, tensor

_PLACES = (
    "place of output index i on an axis that goes from `size` to `out` elements, s = scales[axis]:\n"
    "  half_pixel            (i + 0.5) / s - 0.5\n"
    "  pytorch_half_pixel    the same; 0 if out is 1\n"
    "  align_corners         i * (size - 1) / (out - 1); 0 if out is 1\n"
    "  asymmetric            i / s\n"
    "  half_pixel_symmetric  size / 2 * (1 - out / (s * size)) + (i + 0.5) / s - 0.5\n"
)
_ATTRIBUTES = {
    "shape": "The dimensions of the result, one per axis; batch and channels included.",
    "scales": "For every axis, how many elements of the result stand for one of the input; about out / size, but not"
    " always exactly. Coordinates are computed with it, not with the sizes.",
    "coordinate_transformation_mode": "Where an element of the result lies in the input: see the formula.",
}
_TRAPS = (
    "Places are computed in float32, step by step as the formula says: a rounding decides which neighbor is nearest.",
    "An axis with equal sizes and scale 1 is left alone; one with equal sizes and another scale is not.",
    "`shape` and `scales` have an entry for every axis, also for batch and channels.",
)

MEANINGS: Mapping[str, OperationDoc] = {
    "RESIZE_NEAREST": OperationDoc(
        summary="Another size, by the nearest element of the input.",
        formula=f"output[…, i, …] = input[…, clip(rounded(place(i)), 0, size - 1), …], axis by axis\n{_PLACES}"
        "rounded: round_prefer_floor ceil(p - 0.5); round_prefer_ceil floor(p + 0.5); floor(p); ceil(p)",
        inputs={"input": "Any rank; images [N, C, H, W], or [N, H, W, C] if the layout says NHWC."},
        attributes={
            **_ATTRIBUTES,
            "nearest_mode": "How a place between two elements is rounded. `round_prefer_floor`: halves down."
            " `round_prefer_ceil`: halves up. `floor` and `ceil`: always down, or up.",
        },
        outputs={"output": "The data type and layout of `input`; dimensions `shape`."},
        example=Example(
            (tensor([[1.0, 2.0, 3.0, 4.0]]),),
            {
                "shape": (1, 6),
                "scales": (1.0, 1.5),
                "coordinate_transformation_mode": "asymmetric",
                "nearest_mode": "floor",
            },
        ),
        traps=(*_TRAPS, "A result of a per-tensor quantized operand is quantized as it is."),
    ),
    "RESIZE_LINEAR": OperationDoc(
        summary="Another size, by a weighed mean of neighbors along every axis that changes.",
        formula="output[…, i, …] = input[…, low, …] * (1 - w) + input[…, high, …] * w, axis by axis\n"
        "p = clip(place(i), 0, size - 1), low = floor(p), high = min(low + 1, size - 1), w = p - low\n" + _PLACES,
        inputs={"input": "Any rank; images [N, C, H, W], or [N, H, W, C] if the layout says NHWC."},
        attributes=_ATTRIBUTES,
        outputs={"output": "The data type and layout of `input`; dimensions `shape`."},
        example=Example((tensor([[10.0, 20.0]]),), {"shape": (1, 4), "scales": (1.0, 2.0)}),
        traps=(
            *_TRAPS,
            "Places are clipped before weights are taken: nothing is extrapolated at the border.",
            "With two axes it is bilinear, with three trilinear. There is no antialiasing.",
        ),
        flops="3 for each element of the output and axis that changes",
    ),
}
"""By operation."""
