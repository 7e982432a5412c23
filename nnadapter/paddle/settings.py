"""What Paddle's further settings mean here: one table, which docs/paddle.md shows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_DRIVER = "nothing: the device's driver compiles the model as it does"
_MEMORY = "nothing: plans lend memory from one arena, in any case"
_LOGS = "nothing: no run logs"
_EXACT = "nothing: the CPU's steps are ONNX Runtime's, in the model's own types"
_TENSORRT = "nothing: TensorRT is a device, `enable_custom_device('ort:Tensorrt')`"
_GRAPH = "nothing: a model is prepared and converted in any case"

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "collect_shape_range_info": "nothing: sizes are left open where the device can, see docs/performance.md",
        "delete_pass": _GRAPH,
        "disable_glog_info": _LOGS,
        "disable_mkldnn": _EXACT,
        "disable_mkldnn_fc_passes": _EXACT,
        "disable_onednn": _EXACT,
        "disable_onednn_fc_passes": _EXACT,
        "disable_onnxruntime": "nothing: what no device takes is ONNX Runtime's",
        "enable_cinn": _DRIVER,
        "enable_custom_passes": _GRAPH,
        "enable_low_precision_io": _EXACT,
        "enable_memory_optim": _MEMORY,
        "enable_mkldnn": _EXACT,
        "enable_mkldnn_bfloat16": _EXACT,
        "enable_mkldnn_int8": _EXACT,
        "enable_new_executor": _GRAPH,
        "enable_new_ir": _GRAPH,
        "enable_onednn": _EXACT,
        "enable_onednn_bfloat16": _EXACT,
        "enable_onednn_int8": _EXACT,
        "enable_onnxruntime": "nothing: what no device takes is ONNX Runtime's",
        "enable_ort_optimization": "nothing: ONNX Runtime optimizes the CPU's steps in any case",
        "enable_profile": "nothing: `set_options(trace=FILE)` writes a trace",
        "enable_save_optim_model": "nothing: `nnadapter compile` writes compiled models",
        "enable_tensorrt_dla": _TENSORRT,
        "enable_tensorrt_engine": _TENSORRT,
        "enable_tensorrt_explicit_quantization": _TENSORRT,
        "enable_tensorrt_inspector": _TENSORRT,
        "enable_tensorrt_memory_optim": _TENSORRT,
        "enable_tensorrt_varseqlen": _TENSORRT,
        "enable_tuned_tensorrt_dynamic_shape": _TENSORRT,
        "exp_disable_mixed_precision_ops": _EXACT,
        "exp_disable_tensorrt_dynamic_shape_ops": _TENSORRT,
        "exp_disable_tensorrt_ops": _TENSORRT,
        "exp_disable_tensorrt_subgraph": _TENSORRT,
        "exp_enable_mixed_precision_ops": _EXACT,
        "exp_enable_use_cutlass": _DRIVER,
        "exp_sparse_conv_using_buffer": _DRIVER,
        "exp_specify_tensorrt_subgraph_precision": _TENSORRT,
        "mark_trt_engine_outputs": _TENSORRT,
        "set_bfloat16_op": _EXACT,
        "set_mkldnn_cache_capacity": _EXACT,
        "set_mkldnn_op": _EXACT,
        "set_onednn_cache_capacity": _EXACT,
        "set_onednn_op": _EXACT,
        "set_optimization_level": _GRAPH,
        "set_tensorrt_optimization_level": _TENSORRT,
        "set_trt_dynamic_shape_info": _TENSORRT,
        "switch_ir_debug": _LOGS,
        "switch_ir_optim": _GRAPH,
        "switch_specify_input_names": "nothing: inputs have names",
        "switch_use_feed_fetch_ops": "nothing: inputs and outputs have handles",
        "use_optimized_model": "nothing: what is compiled is kept by `set_optim_cache_dir`",
    }
)
"""Setter -> what it does: nothing, and why that is no harm."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "enable_ipu": "no device here is an IPU",
        "enable_openvino_engine": "OpenVINO is a device, enable_custom_device('openvino')",
        "enable_xpu": "no device here is an XPU; a driver for one is named by enable_custom_device",
        "load_ipu_config": "no device here is an IPU",
        "pass_builder": "there are no passes of Paddle's to choose among",
        "set_ipu_config": "no device here is an IPU",
        "set_ipu_custom_info": "no device here is an IPU",
        "set_model_buffer": "a model is files, which set_model names",
        "set_xpu_config": "no device here is an XPU",
        "set_xpu_device_id": "no device here is an XPU",
        "to_native_config": "there is no native predictor",
    }
)
"""Setter -> why it is an error: to go on without it would be something else than was asked for."""

ANSWERS: Mapping[str, object] = MappingProxyType(
    {
        "fraction_of_gpu_memory_for_pool": 0.0,
        "glog_info_disabled": True,
        "ir_optim": True,
        "memory_pool_init_size_mb": 0,
        "mkldnn_enabled": False,
        "mkldnn_int8_enabled": False,
        "model_from_memory": False,
        "new_ir_enabled": True,
        "onednn_enabled": False,
        "onednn_int8_enabled": False,
        "onnxruntime_enabled": True,
        "openvino_engine_enabled": False,
        "shape_range_info_collected": False,
        "shape_range_info_path": "",
        "specify_input_name": True,
        "tensorrt_dla_enabled": False,
        "tensorrt_dynamic_shape_enabled": False,
        "tensorrt_engine_enabled": False,
        "tensorrt_explicit_quantization_enabled": False,
        "tensorrt_inspector_enabled": False,
        "tensorrt_optimization_level": 0,
        "tensorrt_varseqlen_enabled": False,
        "trt_allow_build_at_runtime": False,
        "tuned_tensorrt_dynamic_shape": False,
        "use_feed_fetch_ops_enabled": False,
        "use_xpu": False,
        "xpu_device_id": 0,
    }
)
"""Question -> its answer, whatever was set."""
