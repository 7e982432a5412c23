"""Paddle's Config: which model, on which devices, with which options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, close_names
from nnadapter.options import Options, options_from
from nnadapter.paddle.settings import ANSWERS, IGNORED, REFUSED
from nnadapter.paddle.types import PrecisionType

if TYPE_CHECKING:
    from nnadapter.drivers.selection import DeviceRequest

_PathLike = str | os.PathLike[str]


class Config:
    """What a predictor is made of. Source: paddle.inference.Config.

    Besides what is defined here, it has Paddle's further setters, which mean what `nnadapter.paddle.settings` says, and
    Paddle's questions about them.

    Args:
        model: the model's structure (`inference.json`, `inference.pdmodel`), its folder, or another Config to copy.
        parameters: its parameters (`inference.pdiparams`); behind a folder, the name of its files without endings.
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
        """Set the model, as the constructor does."""
        path = Path(model)
        if parameters is not None and path.is_dir():
            name = os.fspath(parameters)
            endings = (ending for ending in (".json", ".pdmodel") if (path / f"{name}{ending}").exists())
            self._model, self._parameters = path / f"{name}{next(endings, '.json')}", None
        else:
            self._model, self._parameters = path, Path(parameters) if parameters else None

    def set_prog_file(self, path: _PathLike) -> None:
        """Set the file of the model's structure."""
        self._model = Path(path)

    def set_params_file(self, path: _PathLike) -> None:
        """Set the file of the model's parameters."""
        self._parameters = Path(path)

    def model_dir(self) -> str:
        """The model's folder; empty where files were set."""
        return str(self._model) if self._model is not None and self._model.is_dir() else ""

    def prog_file(self) -> str:
        """The file of the model's structure; empty where a folder was set."""
        return str(self._model) if self._model is not None and not self._model.is_dir() else ""

    def params_file(self) -> str:
        """The file of the model's parameters; empty where none was set."""
        return str(self._parameters or "")

    def enable_custom_device(
        self, device_type: str, device_id: int = 0, precision_mode: PrecisionType = PrecisionType.Float32
    ) -> None:
        """Run on a device of nnadapter's, the CPU for the rest.

        Args:
            device_type: its name, as `nnadapter devices` lists it.
            device_id: which of that name.
            precision_mode: nothing: what a device computes in is an option of it, by `set_devices`.
        """
        self._custom = (device_type, device_id)

    def enable_use_gpu(
        self,
        memory_pool_init_size_mb: int = 100,
        device_id: int = 0,
        precision_mode: PrecisionType = PrecisionType.Float32,
    ) -> None:
        """Run on a GPU by ONNX Runtime, the device `ort:CUDA`; where there is none, a predictor is an error."""
        self._gpu = device_id

    def disable_gpu(self) -> None:
        """Do not run on a GPU."""
        self._gpu = None

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """Set how many threads the CPU's steps have."""
        self._threads = threads

    def set_optim_cache_dir(self, path: _PathLike) -> None:
        """Keep what is compiled in this folder: `Options.cache_dir`."""
        self.set_options(cache_dir=path)

    def set_devices(self, devices: DeviceRequest | Sequence[DeviceRequest] | None) -> None:
        """Set the devices as `InferenceSession` takes them, instead of Paddle's way. Not in Paddle."""
        self._devices = devices

    def set_options(self, options: Options | Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Set options of the session: all of them, or some by name. Not in Paddle."""
        base_options = self._options if options is None else options_from(options)
        named = {name: getattr(base_options, name) for name in Options.__slots__}
        self._options = options_from({**named, **fields})

    def use_gpu(self) -> bool:
        """Whether a GPU is to be used."""
        return self._gpu is not None

    def gpu_device_id(self) -> int:
        """Which GPU."""
        return self._gpu or 0

    def cpu_math_library_num_threads(self) -> int:
        """How many threads the CPU's steps have; 1 where nothing was set, which leaves it to ONNX Runtime."""
        return self._threads or 1

    @property
    def model(self) -> Path | None:
        """The model's folder or structure. Not in Paddle."""
        return self._model

    @property
    def parameters(self) -> Path | None:
        """The file of its parameters, where one was set. Not in Paddle."""
        return self._parameters

    @property
    def devices(self) -> DeviceRequest | Sequence[DeviceRequest] | None:
        """The devices of the session; None for those of the process or the environment, else the CPU. Not in Paddle."""
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
        """Options of the session. Not in Paddle."""
        return self._options

    @property
    def threads(self) -> int | None:
        """Threads of the CPU's steps; None where none were set. Not in Paddle."""
        return self._threads

    def summary(self) -> str:
        """What was set, as a table."""
        rows = {
            "model": self._model or "",
            "parameters": self._parameters or "beside the model",
            "devices": self.devices or "those of the process, else cpu",
            "threads of the CPU": self._threads or "as ONNX Runtime has them",
            "policy": self._options.policy,
            "cache": self._options.cache_dir or "as NNADAPTER_CACHE_DIR says",
        }
        return "".join(f"{name:20}{value}\n" for name, value in rows.items())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """One of Paddle's further settings or questions; see `nnadapter.paddle.settings`."""
        if name in IGNORED:
            return lambda *arguments, **named: None
        if name in ANSWERS:
            return lambda: ANSWERS[name]
        if name in REFUSED:
            raise InvalidOptionError(f"Config.{name} cannot be kept: {REFUSED[name]}")
        setting_names = (
            *(attribute_name for attribute_name in dir(type(self)) if not attribute_name.startswith("_")),
            *IGNORED,
        )
        raise AttributeError(f"Config has no {name!r}; {close_names(name, setting_names)}")
