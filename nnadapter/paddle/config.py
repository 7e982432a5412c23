"""Paddle's Config and enumerations, with tables of ignored and refused settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidInputError, InvalidOptionError, close_names
from nnadapter.ir import operand
from nnadapter.options import Options, options_from
from nnadapter.process.packages import own_version

if TYPE_CHECKING:
    from nnadapter.drivers.selection import DeviceRequest


class DataType(Enum):
    """Data types. Source: paddle.inference.DataType."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    INT8 = "int8"
    BOOL = "bool"


class PrecisionType(Enum):
    """Precisions of a graph engine. Source: paddle.inference.PrecisionType."""

    Float32 = "float32"
    Int8 = "int8"
    Half = "float16"
    Bfloat16 = "bfloat16"


class PlaceType(Enum):
    """Memory places. Source: paddle.inference.PlaceType."""

    UNK = "unknown"
    CPU = "cpu"
    GPU = "gpu"
    XPU = "xpu"
    CUSTOM = "custom"


_DECLARED: Mapping[str, str] = MappingProxyType({"float": "float32", "double": "float64"})


def dtype_of(declared: str) -> str:
    """Return the numpy name of a type that a session declares: `float32` for `tensor(float)`."""
    word = declared.removeprefix("tensor(").removesuffix(")")
    return _DECLARED.get(word, word)


def data_type_of(name: str) -> DataType:
    """Return the data type with a numpy name.

    Raises:
        InvalidInputError: Paddle has no such type.
    """
    try:
        return DataType(name)
    except ValueError:
        type_names = ", ".join(data_type.value for data_type in DataType)
        raise InvalidInputError(f"Paddle has no data type {name!r}; it has {type_names}") from None


def get_num_bytes_of_data_type(dtype: DataType) -> int:
    """Return the bytes of an element."""
    return int(operand.DataType(dtype.value).array_type.itemsize)


def get_version() -> str:
    """Return the version of nnadapter, which runs the models."""
    return f"version: nnadapter {own_version()}\n"


_SHAPES = "nothing: shapes are dynamic if the device supports that, see docs/performance.md"
_DRIVER = "nothing: the device's driver decides how to compile"
_MEMORY = "nothing: plans always reuse memory of one arena"
_LOGS = "nothing: no run logs"
_EXACT = "nothing: ONNX Runtime runs CPU nodes in the model's data types"
_TENSORRT = "nothing: TensorRT is a device, `enable_custom_device('ort:Tensorrt')`"
_GRAPH = "nothing: models are always prepared and converted"

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        name: reason
        for reason, names in {
            _SHAPES: "collect_shape_range_info",
            _GRAPH: "delete_pass enable_custom_passes enable_new_executor enable_new_ir "
            "set_optimization_level switch_ir_optim",
            _LOGS: "disable_glog_info switch_ir_debug",
            _EXACT: "disable_mkldnn disable_mkldnn_fc_passes disable_onednn disable_onednn_fc_passes "
            "enable_low_precision_io enable_mkldnn enable_mkldnn_bfloat16 enable_mkldnn_int8 "
            "enable_onednn enable_onednn_bfloat16 enable_onednn_int8 exp_disable_mixed_precision_ops "
            "exp_enable_mixed_precision_ops set_bfloat16_op set_mkldnn_cache_capacity set_mkldnn_op "
            "set_onednn_cache_capacity set_onednn_op",
            "nothing: ONNX Runtime runs nodes that no device supports": "disable_onnxruntime enable_onnxruntime",
            _DRIVER: "enable_cinn exp_enable_use_cutlass exp_sparse_conv_using_buffer",
            _MEMORY: "enable_memory_optim",
            "nothing: ONNX Runtime always optimizes CPU nodes": "enable_ort_optimization",
            "nothing: `set_options(trace=FILE)` writes a trace": "enable_profile",
            "nothing: `nnadapter compile` writes compiled models": "enable_save_optim_model",
            _TENSORRT: "enable_tensorrt_dla enable_tensorrt_engine enable_tensorrt_explicit_quantization "
            "enable_tensorrt_inspector enable_tensorrt_memory_optim enable_tensorrt_varseqlen "
            "enable_tuned_tensorrt_dynamic_shape exp_disable_tensorrt_dynamic_shape_ops "
            "exp_disable_tensorrt_ops exp_disable_tensorrt_subgraph "
            "exp_specify_tensorrt_subgraph_precision mark_trt_engine_outputs "
            "set_tensorrt_optimization_level set_trt_dynamic_shape_info",
            "nothing: inputs have names": "switch_specify_input_names",
            "nothing: inputs and outputs have handles": "switch_use_feed_fetch_ops",
            "nothing: `set_optim_cache_dir` caches compiled programs": "use_optimized_model",
        }.items()
        for name in names.split()
    }
)
"""Setter without effect -> the reason."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "enable_ipu": "no device here is an IPU",
        "enable_openvino_engine": "OpenVINO is a device, enable_custom_device('openvino')",
        "enable_xpu": "no device here is an XPU; select a driver for one by enable_custom_device",
        "load_ipu_config": "no device here is an IPU",
        "pass_builder": "Paddle's passes do not exist here",
        "set_ipu_config": "no device here is an IPU",
        "set_ipu_custom_info": "no device here is an IPU",
        "set_model_buffer": "models are files; use set_model",
        "set_xpu_config": "no device here is an XPU",
        "set_xpu_device_id": "no device here is an XPU",
        "to_native_config": "there is no native predictor",
    }
)
"""Setter that raises, because results or devices would differ -> the reason."""

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
"""Getter -> its constant result."""


_PathLike = str | os.PathLike[str]


class Config:
    """Configuration of a predictor. Source: paddle.inference.Config.

    Paddle's other setters and getters are in `IGNORED`, `REFUSED` and `ANSWERS` of `nnadapter.paddle.config`.

    Args:
        model: structure file, folder of the model, or a Config to copy.
        parameters: parameter file; if `model` is a folder, the stem of its files.
    """

    Precision = PrecisionType

    def __init__(self, model: _PathLike | Config | None = None, parameters: _PathLike | None = None) -> None:
        self._model: Path | None = None
        self._parameters: Path | None = None
        self._custom: tuple[str, int] | None = None
        self._gpu: int | None = None
        self._devices: DeviceRequest | Sequence[DeviceRequest] | None = None
        self._options = Options()
        self._threads: int | None = None
        if isinstance(model, Config):
            self.__dict__.update(model.__dict__)
        elif model is not None:
            self.set_model(model, parameters)

    def set_model(self, model: _PathLike, parameters: _PathLike | None = None) -> None:
        path = Path(model)
        if parameters is not None and path.is_dir():
            name = os.fspath(parameters)
            endings = (ending for ending in (".json", ".pdmodel") if (path / f"{name}{ending}").exists())
            self._model, self._parameters = path / f"{name}{next(endings, '.json')}", None
        else:
            self._model, self._parameters = path, Path(parameters) if parameters else None

    def set_prog_file(self, path: _PathLike) -> None:
        self._model = Path(path)

    def set_params_file(self, path: _PathLike) -> None:
        self._parameters = Path(path)

    def model_dir(self) -> str:
        """Return the folder of the model; empty if files were set."""
        return str(self._model) if self._model is not None and self._model.is_dir() else ""

    def prog_file(self) -> str:
        """Return the structure file; empty if a folder was set."""
        return str(self._model) if self._model is not None and not self._model.is_dir() else ""

    def params_file(self) -> str:
        """Return the parameter file; empty if none was set."""
        return str(self._parameters or "")

    def enable_custom_device(
        self, device_type: str, device_id: int = 0, precision_mode: PrecisionType = PrecisionType.Float32
    ) -> None:
        """Run on a device of nnadapter, with the CPU as fallback.

        Args:
            device_type: name, as in `nnadapter devices`.
            device_id: index among devices of that name.
            precision_mode: ignored; see `set_devices`.
        """
        self._custom = (device_type, device_id)

    def enable_use_gpu(
        self,
        memory_pool_init_size_mb: int = 100,
        device_id: int = 0,
        precision_mode: PrecisionType = PrecisionType.Float32,
    ) -> None:
        """Run on a GPU with ONNX Runtime. If there is none, creating a predictor raises an error."""
        self._gpu = device_id

    def disable_gpu(self) -> None:
        self._gpu = None

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        self._threads = threads

    def set_optim_cache_dir(self, path: _PathLike) -> None:
        """Cache compiled programs in this folder: `Options.cache_dir`."""
        self.set_options(cache_dir=path)

    def set_devices(self, devices: DeviceRequest | Sequence[DeviceRequest] | None) -> None:
        """Set devices as for `InferenceSession`, overriding Paddle's settings. Not in Paddle."""
        self._devices = devices

    def set_options(self, options: Options | Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Set session options: all of them, or some by name. Not in Paddle."""
        base_options = self._options if options is None else options_from(options)
        named = {name: getattr(base_options, name) for name in Options.__slots__}
        self._options = options_from({**named, **fields})

    def use_gpu(self) -> bool:
        return self._gpu is not None

    def gpu_device_id(self) -> int:
        return self._gpu or 0

    def cpu_math_library_num_threads(self) -> int:
        """Return the number of CPU threads. It is 1 if unset, although ONNX Runtime then decides."""
        return self._threads or 1

    @property
    def model(self) -> Path | None:
        """Folder or structure file of the model. Not in Paddle."""
        return self._model

    @property
    def parameters(self) -> Path | None:
        return self._parameters

    @property
    def devices(self) -> DeviceRequest | Sequence[DeviceRequest] | None:
        """Devices of the session; None for the defaults of the process or environment. Not in Paddle."""
        if self._devices is not None:
            return self._devices
        if self._custom is not None:
            name, number = self._custom
            return f"{name}:{number}" if number else name
        if self._gpu is not None:
            return ("ort:CUDA", {"provider_options": [f"device_id={self._gpu}"]})
        return None

    @property
    def options(self) -> Options:
        return self._options

    @property
    def threads(self) -> int | None:
        return self._threads

    def summary(self) -> str:
        rows = {
            "model": self._model or "",
            "parameters": self._parameters or "next to the model",
            "devices": self.devices or "defaults of the process, otherwise cpu",
            "threads of the CPU": self._threads or "ONNX Runtime's default",
            "policy": self._options.policy,
            "cache": self._options.cache_dir or "from NNADAPTER_CACHE_DIR",
        }
        return "".join(f"{name:20}{value}\n" for name, value in rows.items())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in IGNORED:
            return lambda *arguments, **named: None
        if name in ANSWERS:
            return lambda: ANSWERS[name]
        if name in REFUSED:
            raise InvalidOptionError(f"Config.{name} is not supported: {REFUSED[name]}")
        setting_names = (
            *(attribute_name for attribute_name in dir(type(self)) if not attribute_name.startswith("_")),
            *IGNORED,
        )
        raise AttributeError(f"Config has no {name!r}; {close_names(name, setting_names)}")
