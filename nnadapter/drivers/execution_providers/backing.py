"""Who computes in a session: a provider with its devices and options, found and checked; and sessions on it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnadapter.drivers.capability import Option, OptionValues
from nnadapter.drivers.execution_providers.foreign_libraries import load_libraries
from nnadapter.drivers.execution_providers.libraries import (
    devices_of,
    installed,
    installed_providers,
    library_path,
    register,
)
from nnadapter.drivers.execution_providers.names import OWN_OPTIONS, PLACES, full_name, how_to_get
from nnadapter.drivers.onnxruntime.sessions import open_session, without_files
from nnadapter.drivers.onnxruntime.weights import Loadable
from nnadapter.errors import DeviceUnavailableError, DriverWarning, InvalidOptionError
from nnadapter.ir.operand import Array
from nnadapter.onnx.onnxruntime_limits import QUIET
from nnadapter.process.real_onnxruntime import onnxruntime

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.profiling import SessionProfile

_LEVELS = {
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_HARDWARE = ("npu", "gpu", "cpu")
"""Kinds of hardware, the ones to prefer first."""

OPTIONS = (
    Option(name="library", default="", help="Path of the provider's plug-in library, where no package brings it."),
    Option(
        name="hardware",
        default="any",
        choices=("any", *_HARDWARE),
        help="The kind of hardware that the provider must use; any takes an NPU before a GPU before a CPU.",
    ),
    Option(
        name="provider_options", default=(), help="The provider's own options, as NAME=VALUE; see its documentation."
    ),
    Option(
        name="optimization",
        default="basic",
        choices=tuple(_LEVELS),
        help="What ONNX Runtime changes in a segment before the provider sees it.",
    ),
)
"""What every `ort:NAME` understands."""


_NO_WEIGHTS: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Backing:
    """A provider, ready for sessions."""

    provider: str
    """As ONNX Runtime calls it."""
    devices: tuple[onnxruntime.OrtEpDevice, ...] = ()
    """The hardware that it shall use; empty for a provider that ONNX Runtime was built with."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The provider's own."""
    optimization: str = "basic"
    """A name of a level."""

    @property
    def version(self) -> str:
        """Of the provider's library."""
        return str(next((device.ep_metadata.get("version", "") for device in self.devices), onnxruntime.__version__))

    @property
    def level(self) -> onnxruntime.GraphOptimizationLevel:
        """What ONNX Runtime may change before the provider sees a graph."""
        return _LEVELS[self.optimization]

    @property
    def keeps_values(self) -> bool:
        """Whether values may stay on the provider's device, which is the first of its kind then."""
        return self.provider in PLACES and self.options.get("device_id", "0") == "0"

    def session_options(self, level: onnxruntime.GraphOptimizationLevel | None = None) -> onnxruntime.SessionOptions:
        """Session options that name the provider and ask for its graph assignment.

        A plug-in is named by its devices: named in `providers=` it would be left out without a word.
        """
        options = without_files(onnxruntime.SessionOptions())
        options.log_severity_level = QUIET
        options.graph_optimization_level = self.level if level is None else level
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self.devices:
            options.add_provider_for_devices(list(self.devices), dict(self.options))
        else:
            options.add_provider(self.provider, dict(self.options))
        return options

    def open(
        self,
        contents: bytes,
        level: onnxruntime.GraphOptimizationLevel | None = None,
        profile: SessionProfile | None = None,
        without: Sequence[str] = (),
        weights: Mapping[str, Array] = _NO_WEIGHTS,
    ) -> onnxruntime.InferenceSession:
        """Return a session of a serialized model on the provider; whatever ONNX Runtime raises passes.

        Args:
            contents: the model.
            level: what ONNX Runtime may change in it; None for what the options say.
            profile: what takes the session's own events.
            without: optimizers to do without.
            weights: what its initializers hold that are not in `contents`; kept for as long as the session lives.

        Raises:
            DeviceUnavailableError: ONNX Runtime made a session without the provider.
        """
        model, options = Loadable(contents, weights), self.session_options(level)
        model.add_to(options)
        session = open_session(
            model,
            options,
            has_pool=False,
            spins=False,
            providers=(),
            without=without,
            profile=profile,
        )
        if self.provider not in session.get_providers():
            raise DeviceUnavailableError(
                f"ONNX Runtime made a session without {self.provider}, got {', '.join(session.get_providers())}; "
                "its libraries do not load here, see the provider's requirements"
            )
        return session


def find_backing(name: str, options: OptionValues) -> Backing:
    """Return the provider called `name` with `options`, its library registered.

    Args:
        name: with or without its suffix, in any case.
        options: of the table `OPTIONS`.

    Raises:
        DeviceUnavailableError: it is not here, or not for the wanted hardware.
        InvalidOptionError: an option of the provider is no NAME=VALUE.
    """
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise DeviceUnavailableError(
            f"device 'ort:{name}' needs onnxruntime 1.24 or later, which tells who runs which node, and "
            f"{onnxruntime.__version__} is here; run: pip install -U onnxruntime"
        )
    packages = installed()
    provider = full_name(name, (*installed_providers(), *onnxruntime.get_all_providers()))
    path = str(options["library"]) or (library_path(packages[provider]) if provider in packages else "")
    devices = register(provider, path) if path else devices_of(provider)
    if not devices and provider not in onnxruntime.get_available_providers():
        raise DeviceUnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} has no {provider!r}; {how_to_get(provider)}, or give the path of "
            "its plug-in library as option 'library'"
        )
    load_libraries(provider)
    provider_options = read_provider_options(options["provider_options"])
    _warn_of_unknown(provider, provider_options, path)
    return Backing(
        provider=devices[0].ep_name if devices else provider,
        devices=_chosen(provider, devices, str(options["hardware"])),
        options={**OWN_OPTIONS.get(provider, {}), **provider_options},
        optimization=str(options["optimization"]),
    )


def read_provider_options(texts: object) -> Mapping[str, str]:
    """Return `NAME=VALUE` texts as a mapping.

    Raises:
        InvalidOptionError: one is something else, or a name comes twice.
    """
    assert isinstance(texts, tuple)  # what the option's type was checked to be
    provider_options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or name in provider_options:
            raise InvalidOptionError(f"provider_options are NAME=VALUE, each name once, got {text!r}; write it so")
        provider_options[name] = value
    return provider_options


def _chosen(
    provider: str, devices: Sequence[onnxruntime.OrtEpDevice], hardware: str
) -> tuple[onnxruntime.OrtEpDevice, ...]:
    """The devices of the wanted kind of hardware; nothing else is taken instead."""
    if not devices and hardware != "any":
        raise InvalidOptionError(
            f"{provider} was built into ONNX Runtime, which chooses its hardware; leave the option 'hardware' out"
        )
    kinds = {device.device.type.name.lower() for device in devices}
    hardware_kind = next((kind for kind in _HARDWARE if kind in kinds), "") if hardware == "any" else hardware
    if devices and hardware_kind not in kinds:
        raise DeviceUnavailableError(
            f"{provider} was asked for {hardware} hardware and has {', '.join(sorted(kinds))} on this machine; "
            "choose another kind, or 'any'"
        )
    return tuple(device for device in devices if device.device.type.name.lower() == hardware_kind)


def _warn_of_unknown(provider: str, provider_options: Mapping[str, str], path: str) -> None:
    """Providers ignore options that they do not know; those whose name is not in their library are such."""
    if not provider_options or not path:
        return
    contents = Path(path).read_bytes()
    for name in provider_options:
        if name.encode() not in contents:
            warnings.warn(
                f"{provider} was given the option {name!r}, which its library does not name, and providers ignore what "
                "they do not know; see its documentation for the spelling",
                DriverWarning,
                stacklevel=2,
            )
