"""A module to put in place of onnxruntime: all of its public names and sub-modules, with our InferenceSession behind.

    from nnadapter import ort as onnxruntime        # one import changed
    ort.install(); import client; ort.use("fake_npu")   # or none: the client is not touched

`use` names the devices that come before the providers a client asks for, and the options of its sessions. Sessions
answer with ONNX Runtime's provider names, and what they raise is also ONNX Runtime's exception (InvalidArgument,
NoSuchFile, ...), ValueError and TypeError where it raises those.
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
from nnadapter.drivers.registry import sources
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
"""Our errors and what ONNX Runtime raises in such a case, most specific first."""

_LOAD_CANCELLED = getattr(_native, "ModelLoadCanceled", _native.Fail)
"""ONNX Runtime's exception for a session whose load cancellation flag is set; older versions have none of its own."""
_lock = new_lock()
_chosen: tuple[Sequence[DeviceRequest], _Options | None] = (), None
"""Devices and options, for sessions that name none."""
_replaced: dict[str, ModuleType] = {}


def use(
    devices: DeviceRequest | Sequence[DeviceRequest], *, options: _Options | Mapping[str, Any] | None = None
) -> None:
    """Put `devices` before the providers that clients name, in sessions made from now on.

    Args:
        devices: as `InferenceSession` takes them; an empty list for what clients ask for.
        options: of those sessions, see `Options`; the usual ones if None.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: a device cannot be used like that, or an option
            does not fit.
    """
    global _chosen
    chosen = None if options is None else options_from(options)
    _chosen = tuple(requests_of(devices, (chosen or _Options()).isolated)), chosen


def install() -> None:
    """Make `import onnxruntime` give this module, for clients that are imported after it."""
    with _lock:
        if not _replaced:
            _replaced["onnxruntime"] = sys.modules["onnxruntime"]
            sys.modules["onnxruntime"] = sys.modules[__name__]


def uninstall() -> None:
    """Undo `install`. Clients that were imported in between keep what they imported."""
    with _lock:
        sys.modules.update(_replaced)
        _replaced.clear()


class SessionOptions(_original.SessionOptions):  # type: ignore[misc]  # a class of pybind11
    """ONNX Runtime's own, which knows again what was put in the place of initializers and open dimensions.

    So it counts for a session over devices, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.overrides = Overrides()
        self._external: dict[str, Any] = {}
        self.is_load_cancelled = False

    def set_load_cancellation_flag(self, value: bool) -> None:
        """See ONNX Runtime: no session opens while it is set."""
        super().set_load_cancellation_flag(value)
        self.is_load_cancelled = value

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """See ONNX Runtime: `ort_value` takes the place of an initializer."""
        super().add_initializer(name, ort_value)
        self.overrides.initializers[name] = ort_value

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[Any]) -> None:
        """See ONNX Runtime: the values take the place of initializers that lie beside the model."""
        values = dict(zip(names, ort_values, strict=True))
        self._external.update(values)
        self.overrides.initializers.update(values)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """See ONNX Runtime: the buffers are the files that lie beside the model."""
        super().add_external_initializers_from_files_in_memory(names, buffers, lengths)
        files = zip(names, buffers, lengths, strict=True)
        self.overrides.files.update({name: memoryview(buffer).cast("B")[:length] for name, buffer, length in files})

    def use_for_whole_model(self) -> None:
        """Add the external initializers, with which ONNX Runtime opens no session of a part of the model."""
        super().add_external_initializers(list(self._external), list(self._external.values()))
        self._external.clear()

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """See ONNX Runtime: dimensions of inputs that are called so have this size."""
        super().add_free_dimension_override_by_name(name, size)
        self.overrides.sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """See ONNX Runtime: dimensions of inputs that stand for this have this size."""
        super().add_free_dimension_override_by_denotation(denotation, size)
        self.overrides.sizes_by_denotation[denotation] = size


class RunOptions(_original.RunOptions):  # type: ignore[misc]  # a class of pybind11
    """ONNX Runtime's run options with a list of their entries, which copies of them need."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """See ONNX Runtime: set an entry."""
        super().add_run_config_entry(key, value)
        self.entries[key] = value


class InferenceSession(_InferenceSession):
    """See `nnadapter.InferenceSession`; its `devices` are those of `use`, and then the client's providers."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        with _as_theirs(of_loading=True):
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
        """See `nnadapter.InferenceSession.run_with_iobinding`; whatever goes wrong is a RuntimeError, too."""
        try:
            super().run_with_iobinding(iobinding, run_options)
        except errors.NNAdapterError as error:
            raise _theirs(error, RuntimeError) from error

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """See `nnadapter.InferenceSession.set_providers`; a provider that does not exist is a RuntimeError."""
        names = [provider[0] if isinstance(provider, tuple) else provider for provider in providers or ()]
        available_providers = {*_original.get_all_providers(), *self.get_providers()}
        unknown = [
            name for name in names if name not in available_providers and name.partition(":")[0] not in sources()
        ]
        if provider_options is not None and not all(
            isinstance(provider_option, Mapping) for provider_option in provider_options
        ):
            raise ValueError("'provider_options' values must be dicts.")
        try:
            if unknown and (provider_options is None or len(provider_options) == len(names)):
                raise errors.InvalidOptionError(
                    f"Unknown Provider Type: {unknown[0]}; name one of {list(get_available_providers())}"
                )
            super().set_providers(providers, provider_options)
        except errors.NNAdapterError as error:
            is_pairing = provider_options is not None and len(provider_options) != len(names)
            raise _theirs(error, ValueError if is_pairing else RuntimeError) from error

    def get_provider_graph_assignment_info(self) -> Sequence[Any]:
        try:
            return super().get_provider_graph_assignment_info()
        except errors.NNAdapterError as error:
            raise _theirs(error, _native.Fail) from error

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        try:
            super().set_tuning_results(results, error_on_invalid=error_on_invalid)
        except errors.NNAdapterError as error:
            raise _theirs(error, RuntimeError) from error

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        try:
            super().set_ep_dynamic_options(options)
        except errors.NNAdapterError as error:
            raise _theirs(error, RuntimeError) from error

    def _serves(self, devices: Sequence[str]) -> bool:
        """Whether they are among the session's: those of `use` come before what a client asks for."""
        return {*devices, "cpu"} <= {*self.devices, "cpu"}

    def get_providers(self) -> list[str]:
        """ONNX Runtime's names for its providers, the CPU among them, ours for the other devices."""
        return [provider_of_device(name) for name in self.devices]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Per provider, its options: none."""
        return {name: {} for name in self.get_providers()}


class IOBinding(_IOBinding):
    """A binding of inputs and outputs whose results in the host's memory are ONNX Runtime's OrtValues."""

    def get_outputs(self) -> list[Any]:
        """Return the results: `nnadapter.DeviceValue` on a device that the output was bound to, else OrtValue."""
        results = super().get_outputs()
        return [
            result
            if isinstance(result, DeviceValue) and result.device != CPU
            else ort_value_of(result.contents if isinstance(result, DeviceValue) else result)
            for result in results
        ]


def get_available_providers() -> list[str]:
    """ONNX Runtime's own list: what a client may name."""
    providers: list[str] = _original.get_available_providers()
    return providers


def _merge_devices(
    chosen: list[DeviceRequest], providers: Sequence[Any] | None, options: Sequence[Mapping[str, Any]] | None
) -> list[DeviceRequest]:
    """The chosen devices, then those that the client's providers stand for and that were not chosen."""
    names = {request if isinstance(request, str) else request[0] for request in chosen}
    provider_requests = devices_of_providers(providers, options) if providers else []
    return chosen + [
        request for request in provider_requests if (request if isinstance(request, str) else request[0]) not in names
    ]


@contextmanager
def _as_theirs(*, of_loading: bool = False) -> Iterator[None]:
    try:
        yield
    except errors.NNAdapterError as error:
        is_cancelled = of_loading and isinstance(error, errors.CancelledError)
        raise _theirs(error, _LOAD_CANCELLED if is_cancelled else None) from error


def _theirs(error: errors.NNAdapterError, theirs: type[Exception] | None = None) -> errors.NNAdapterError:
    """The same error as an instance of ONNX Runtime's class too."""
    table = next(raised for ours, raised in _THEIRS if isinstance(error, ours))
    both = _both(type(error), *((theirs,) if theirs else _raised_there(error) or (table,)))
    translated = both.__new__(both)
    translated.args = error.args
    translated.__dict__.update(error.__dict__)
    return translated


def _raised_there(error: errors.NNAdapterError) -> tuple[type[Exception], ...]:
    """The classes of the exception of ONNX Runtime that became this error; none if there is no such exception."""
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
    """Everything else is ONNX Runtime's own."""
    return getattr(_original, name)


def __dir__() -> list[str]:
    """ONNX Runtime's names and ours."""
    return sorted({*dir(_original), *(name for name in globals() if not name.startswith("_"))})


# Sub-modules are found where ONNX Runtime's are: `import onnxruntime.capi` works while this module stands in for it.
__path__ = _original.__path__
__version__ = _original.__version__
