"""What reads images between their pixels."""

from __future__ import annotations

from nnadapter.exporting.registry import exporter
from nnadapter.exporting.writer import NodeWriter
from nnadapter.ir.operand import DataType


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
