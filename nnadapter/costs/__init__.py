"""Costs in seconds and their sources; see docs/partitioning.md."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".calibration": (
            "MeasuredCandidate MeasuredChoice MeasuredDevice MeasuredNetwork choice_key contents_of "
            "driver_version find_calibration is_calibrated keep_calibration read_calibration recall remember "
            "speed_options write_stored"
        ),
        ".calibrator": "Launches ProgramTiming ROUNDS Stopwatch calibrate fit scale_to_networks seconds_by_kind",
        ".cost_model": (
            "AROUND_A_DEVICE AROUND_THE_HOST CONVERSION_BANDWIDTH CostTable DeviceCosts FusedGraph Fusion Source "
            "calibrated cost_table device_costs fuse_atoms fused_groups fusion_of"
        ),
        ".probes": "networks onnx_form work_of",
        ".work": (
            "CLASSES CLASS_OF_TYPE Kind Line MeasuredWork OperationClass Reading UNKNOWN_DIMENSION UnitWork "
            "channels_of class_of layout_changes producers_of roofline"
        ),
    },
)
