"""Drop-in replacement for onnxruntime: its public names and sub-modules, with our InferenceSession.

    from nnadapter import ort as onnxruntime        # change one import
    ort.install(); import client; ort.use("fake_npu")   # or leave the client unchanged

Each error is also an instance of the exception that ONNX Runtime raises: its own (InvalidArgument, NoSuchFile, ...),
ValueError or TypeError.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from onnxruntime.capi import onnxruntime_pybind11_state as _native

from nnadapter import errors
from nnadapter.drivers.onnxruntime.values import ort_value_of
from nnadapter.drivers.providers import devices_of_providers, provider_of_device
from nnadapter.drivers.registry import device_of, sources
from nnadapter.drivers.selection import CPU, DeviceRequest, requests_of
from nnadapter.engine.device_value import DeviceValue
from nnadapter.onnx.files import Overrides
from nnadapter.options import Options as _Options
from nnadapter.options import options_from
from nnadapter.process.real_onnxruntime import onnxruntime as _original
from nnadapter.process.resources import new_lock
from nnadapter.session.binding import IOBinding as _IOBinding
from nnadapter.session.session import InferenceSession as _InferenceSession

_THEIRS: tuple[tuple[type[errors.NNAdapterError], type[Exception]], ...] = (
    (errors.ModelFileError, _native.NoSuchFile),
    (errors.InvalidModelError, _native.InvalidProtobuf),
    (errors.MissingInputError, ValueError),
    (errors.InvalidInputError, _native.InvalidArgument),
    (errors.InvalidOptionError, ValueError),
    (errors.DeviceNotFoundError, ValueError),
    (errors.NotDelegatedError, _native.Fail),
    (errors.CancelledError, _native.Fail),
    (errors.DriverError, _native.EPFail),
    (errors.NNAdapterError, _native.Fail),
)

_LOAD_CANCELLED = getattr(_native, "ModelLoadCanceled", _native.Fail)
"""ONNX Runtime's exception for a cancelled load, or `Fail` in versions without it."""
_lock = new_lock()
_chosen: tuple[Sequence[DeviceRequest], _Options | None] = (), None
_replaced: dict[str, ModuleType] = {}


def use(
    devices: DeviceRequest | Sequence[DeviceRequest], *, options: _Options | Mapping[str, Any] | None = None
) -> None:
    """Set the devices of sessions opened from now on. They precede the providers that clients request.

    Args:
        devices: as in `InferenceSession`; an empty list restores the clients' choice.
        options: `Options` of those sessions.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: a device or option cannot be used.
    """
    global _chosen
    chosen = None if options is None else options_from(options)
    _chosen = tuple(requests_of(devices, (chosen or _Options()).isolated)), chosen


def install() -> None:
    """Make `import onnxruntime` return this module in clients imported afterwards."""
    with _lock:
        if not _replaced:
            _replaced["onnxruntime"] = sys.modules["onnxruntime"]
            sys.modules["onnxruntime"] = sys.modules[__name__]


def uninstall() -> None:
    """Undo `install`. Clients keep what they have imported."""
    with _lock:
        sys.modules.update(_replaced)
        _replaced.clear()


class SessionOptions(_original.SessionOptions):  # type: ignore[misc]  # a class of pybind11
    """ONNX Runtime's session options, which also record replaced initializers and free dimensions for devices."""

    def __init__(self) -> None:
        super().__init__()
        self.overrides = Overrides()
        self._external: dict[str, Any] = {}
        self.is_load_cancelled = False

    def set_load_cancellation_flag(self, value: bool) -> None:
        super().set_load_cancellation_flag(value)
        self.is_load_cancelled = value

    def add_initializer(self, name: str, ort_value: Any) -> None:
        super().add_initializer(name, ort_value)
        self.overrides.initializers[name] = ort_value

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[Any]) -> None:
        values = dict(zip(names, ort_values, strict=True))
        self._external.update(values)
        self.overrides.initializers.update(values)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        super().add_external_initializers_from_files_in_memory(names, buffers, lengths)
        files = zip(names, buffers, lengths, strict=True)
        self.overrides.files.update({name: memoryview(buffer).cast("B")[:length] for name, buffer, length in files})

    def use_for_whole_model(self) -> None:
        super().add_external_initializers(list(self._external), list(self._external.values()))
        self._external.clear()

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        super().add_free_dimension_override_by_name(name, size)
        self.overrides.sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        super().add_free_dimension_override_by_denotation(denotation, size)
        self.overrides.sizes_by_denotation[denotation] = size


class RunOptions(_original.RunOptions):  # type: ignore[misc]  # a class of pybind11
    """ONNX Runtime's run options, which also record configuration entries, so that they can be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        super().add_run_config_entry(key, value)
        self.entries[key] = value


class InferenceSession(_InferenceSession):
    """`nnadapter.InferenceSession` on the devices of `use`, then those of the requested providers."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        with _as_theirs(cancelled=_LOAD_CANCELLED):
            chosen, options = _chosen
            if chosen and kwargs.get("devices") is None:
                kwargs["devices"] = _merge_devices(list(chosen), providers, provider_options)
            if options is not None and kwargs.get("options") is None:
                kwargs["options"] = options
            super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        try:
            return super().run(output_names, input_feed, run_options)
        except errors.NNAdapterError as error:
            raise _theirs(error) from error

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        with _as_theirs():
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def run_with_iobinding(self, iobinding: _IOBinding, run_options: Any = None) -> None:
        """Run on bound values. Errors are instances of RuntimeError too."""
        with _as_theirs(RuntimeError):
            super().run_with_iobinding(iobinding, run_options)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Check that the session uses these providers' devices. Errors for other providers are RuntimeErrors too."""
        names = [provider[0] if isinstance(provider, tuple) else provider for provider in providers or ()]
        available_providers = {*_original.get_all_providers(), *self.get_providers()}
        unknown = [
            name
            for name in names
            if name not in available_providers and device_of(name).partition(":")[0] not in sources()
        ]
        if provider_options is not None and not all(
            isinstance(provider_option, Mapping) for provider_option in provider_options
        ):
            raise ValueError("'provider_options' values must be dicts.")
        is_paired = provider_options is None or len(provider_options) == len(names)
        with _as_theirs(RuntimeError if is_paired else ValueError):
            if unknown and is_paired:
                raise errors.InvalidOptionError(
                    f"Unknown Provider Type: {unknown[0]}; name one of {list(get_available_providers())}"
                )
            super().set_providers(providers, provider_options)

    def get_provider_graph_assignment_info(self) -> Sequence[Any]:
        with _as_theirs(_native.Fail):
            return super().get_provider_graph_assignment_info()

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        with _as_theirs(RuntimeError):
            super().set_tuning_results(results, error_on_invalid=error_on_invalid)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        with _as_theirs(RuntimeError):
            super().set_ep_dynamic_options(options)

    def _serves(self, devices: Sequence[str]) -> bool:
        return {*devices, "cpu"} <= {*self.devices, "cpu"}

    def get_providers(self) -> list[str]:
        """Return ONNX Runtime's provider name of each device, otherwise the device's name."""
        return [provider_of_device(name) for name in self.devices]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}


class IOBinding(_IOBinding):
    """IOBinding that returns results in host memory as OrtValues."""

    def get_outputs(self) -> list[Any]:
        results = super().get_outputs()
        return [
            result
            if isinstance(result, DeviceValue) and result.device != CPU
            else ort_value_of(result.contents if isinstance(result, DeviceValue) else result)
            for result in results
        ]


def get_available_providers() -> list[str]:
    """Return ONNX Runtime's providers."""
    providers: list[str] = _original.get_available_providers()
    return providers


def _merge_devices(
    chosen: list[DeviceRequest], providers: Sequence[Any] | None, options: Sequence[Mapping[str, Any]] | None
) -> list[DeviceRequest]:
    names = {request if isinstance(request, str) else request[0] for request in chosen}
    provider_requests = devices_of_providers(providers, options) if providers else []
    return chosen + [
        request for request in provider_requests if (request if isinstance(request, str) else request[0]) not in names
    ]


@contextmanager
def _as_theirs(theirs: type[Exception] | None = None, *, cancelled: type[Exception] | None = None) -> Iterator[None]:
    """Raise nnadapter's errors as instances of `theirs` too.

    By default, `theirs` is the exception that ONNX Runtime would raise. `cancelled` replaces it for a CancelledError.
    """
    try:
        yield
    except errors.NNAdapterError as error:
        raise _theirs(error, cancelled if isinstance(error, errors.CancelledError) and cancelled else theirs) from error


def _theirs(error: errors.NNAdapterError, theirs: type[Exception] | None = None) -> errors.NNAdapterError:
    table = next(raised for ours, raised in _THEIRS if isinstance(error, ours))
    both = _both(type(error), *((theirs,) if theirs else _raised_there(error) or (table,)))
    translated = both.__new__(both)
    translated.args = error.args
    translated.__dict__.update(error.__dict__)
    return translated


def _raised_there(error: errors.NNAdapterError) -> tuple[type[Exception], ...]:
    if isinstance(error, (errors.MissingInputError, errors.CancelledError, errors.ModelFileError)):
        return ()
    cause: BaseException | None = error
    while isinstance(cause, errors.NNAdapterError):
        cause = cause.__cause__
    if type(cause) is RuntimeError:
        return (_native.InvalidArgument, RuntimeError)
    return (type(cause),) if isinstance(cause, Exception) and type(cause).__module__ == _native.__name__ else ()


_classes: dict[tuple[type, ...], type[errors.NNAdapterError]] = {}


def _both(ours: type[errors.NNAdapterError], *theirs: type[Exception]) -> type[errors.NNAdapterError]:
    key = (ours, *theirs)
    if key not in _classes:
        members = {"__module__": __name__, "__doc__": ours.__doc__}
        _classes[key] = type(ours.__name__, key, members)
    return _classes[key]


def __getattr__(name: str) -> Any:
    return getattr(_original, name)


def __dir__() -> list[str]:
    return sorted({*dir(_original), *(name for name in globals() if not name.startswith("_"))})


# ONNX Runtime's path, so that `import onnxruntime.capi` works while this module replaces it
__path__ = _original.__path__
__version__ = _original.__version__
