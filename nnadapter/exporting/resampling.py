"""Exporters of resizing, sampling grids and regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.exporting.writer import NodeWriter, exporter, known_sizes
from nnadapter.ir.operand import Array, DataType
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_RATIO_TOLERANCE = 1e-6
"""How near scales are to the quotients of sizes that they were computed from."""
_PRECISIONS = (np.float32, np.float64)
"""In which readers of ONNX multiply sizes and scales: whole numbers come out in one and not in the other."""


@exporter("RESIZE_NEAREST")
def export_resize_nearest(write: NodeWriter) -> str:
    """RESIZE_NEAREST. Source: ONNX Resize-19."""
    return _resize(write, mode="nearest", nearest_mode=write.operation.nearest_mode)


@exporter("RESIZE_LINEAR")
def export_resize_linear(write: NodeWriter) -> str:
    """RESIZE_LINEAR. Source: ONNX Resize-19."""
    return _resize(write, mode="linear")


def _resize(write: NodeWriter, **attributes: object) -> str:
    """By scales where they give the sizes, as they say where an element is read; else by sizes.

    Refused: sizes that neither scales nor an aspect ratio that is kept give.
    """
    of, dimensions = write.operation, known_sizes(write.type.dimensions)
    scales = np.asarray(known_sizes(of.scales), np.float32)
    shape = known_sizes(of.shape)
    products = (np.asarray(dimensions, dtype) * scales.astype(dtype) for dtype in _PRECISIONS)
    mode = of.coordinate_transformation_mode
    if all(tuple(map(int, np.floor(product))) == tuple(map(int, shape)) for product in products):
        which = (write.constant(scales), "")
    else:
        stated = {} if mode == "align_corners" else _aspect_ratio(dimensions, shape, scales)
        which = ("", write.integers(*(shape[axis] for axis in stated.get("axes", range(len(shape))))))
        attributes |= stated
    return write.node("Resize", write.inputs[0], "", *which, coordinate_transformation_mode=mode, **attributes)  # type: ignore[arg-type]


def _aspect_ratio(dimensions: Sequence[int], shape: Sequence[int], scales: Array) -> dict[str, Any]:
    """What a node says beside sizes so that its scales are these."""
    ratios = np.asarray(shape, np.float32) / np.maximum(np.asarray(dimensions, np.float32), 1)
    if np.allclose(ratios, scales, rtol=_RATIO_TOLERANCE):
        return {}
    changed = [axis for axis, scale in enumerate(scales) if scale != 1 or shape[axis] != dimensions[axis]]
    for policy, of_all in (("not_larger", min), ("not_smaller", max)):
        ratio = of_all(ratios[changed])
        rounded = np.floor(np.asarray(dimensions)[changed] * ratio + 0.5)
        if np.allclose(scales[changed], ratio, rtol=_RATIO_TOLERANCE) and (rounded == np.asarray(shape)[changed]).all():
            return {"axes": tuple(changed), "keep_aspect_ratio_policy": policy}
    raise Refusal(
        Reason.UNSUPPORTED_ATTRIBUTE,
        f"scales {scales.tolist()} of a resize do not give its sizes {list(shape)}, which ONNX would take them from",
    )


@exporter("GRID_SAMPLE")
def export_grid_sample(write: NodeWriter) -> str:
    """GRID_SAMPLE. Source: ONNX GridSample-22."""
    of = write.operation
    return write.node(
        "GridSample", *write.inputs, mode=of.mode, padding_mode=of.padding_mode, align_corners=of.align_corners
    )


@exporter("AFFINE_GRID")
def export_affine_grid(write: NodeWriter) -> str:
    """AFFINE_GRID; of the size's channels nothing depends, so there is one. Source: ONNX AffineGrid-20."""
    size = write.integers(write.type.dimensions[0], 1, *write.operation.output_shape)
    return write.node("AffineGrid", write.inputs[0], size, align_corners=write.operation.align_corners)


@exporter("ROI_ALIGN")
def export_roi_align(write: NodeWriter) -> str:
    """ROI_ALIGN. Source: ONNX RoiAlign-22."""
    of = write.operation
    x, regions, numbers = write.inputs
    return write.node(
        "RoiAlign",
        x,
        regions,
        write.cast(numbers, DataType.INT64),
        output_height=of.output_shape[0],
        output_width=of.output_shape[1],
        spatial_scale=of.spatial_scale,
        sampling_ratio=of.sampling_ratio,
        mode=of.mode,
        coordinate_transformation_mode="half_pixel" if of.half_pixel else "output_half_pixel",
    )


@exporter("MAX_ROI_POOL")
def export_max_roi_pool(write: NodeWriter) -> str:
    """MAX_ROI_POOL. Source: ONNX MaxRoiPool-22."""
    of = write.operation
    return write.node("MaxRoiPool", *write.inputs, pooled_shape=of.output_shape, spatial_scale=of.spatial_scale)
