"""ONNX Runtime's way to choose (`providers`, `provider_options`) -> devices."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nnadapter.drivers.provider_names import DRIVER, GRAPHICS, SUFFIX, device_name, full_name
from nnadapter.drivers.registry import sources
from nnadapter.drivers.selection import CPU, DeviceRequest
from nnadapter.errors import DriverWarning, FallbackWarning, InvalidOptionError
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.optional_parts import optional_part

_QNN = "QNNExecutionProvider"
_READERS: Mapping[str, Collection[str]] = {
    "gpu_graph_id": GRAPHICS,
    "qnn.htp_perf_mode": (_QNN,),
    "qnn.htp_perf_mode_post_run": (_QNN,),
    "qnn.lora_config": (_QNN,),
    "qnn.rpc_control_latency": (_QNN,),
}
"""Entries of run options that single providers read. Source: onnxruntime_run_options_config_keys.h."""


def provider_of_device(name: str) -> str:
    """What a client of ONNX Runtime sees in a device's place: the provider that it is, or else its name."""
    if name == CPU:
        return CPU_PROVIDER
    driver, _, device_id = name.partition(":")
    return full_name(device_id, optional_part("installed_providers")()) if driver == DRIVER and device_id else name


def devices_of_providers(
    providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]] | None = None
) -> list[DeviceRequest]:
    """Return the devices that a client's providers stand for, in its order.

    A name of a device stands for it, and a provider that is here for its device `ort:NAME`. One that is not is warned
    of, as ONNX Runtime warns of providers it does not have, and the next one is taken.

    Raises:
        InvalidOptionError: the lists do not go together.
    """
    requests: list[DeviceRequest] = []
    for name, options in _pairs(providers, provider_options):
        if name == CPU_PROVIDER:
            requests.append(CPU)
        elif not name.endswith(SUFFIX) or name.partition(":")[0] in sources():
            requests.append((name, options))
        elif name in optional_part("installed_providers")() and not optional_part("why_provider_is_unusable")(name):
            option_entries = tuple(f"{key}={value}" for key, value in options.items())
            requests.append((device_name(name), {"provider_options": option_entries}))
        else:
            warnings.warn(
                f"provider {name!r} is not a device of this installation and is left out; "
                "`nnadapter devices` lists those that are",
                FallbackWarning,
                stacklevel=3,
            )
    return requests or [CPU]


def options_of_cpu(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Mapping[str, Any]:
    """The options that a client gave for ONNX Runtime's CPU provider."""
    pairs = _pairs(providers or (), provider_options if providers else None)
    return next((options for name, options in pairs if name == CPU_PROVIDER), {})


def warn_of_unread_entries(entries: Mapping[str, str], devices: Sequence[str]) -> None:
    """Warn about each entry of run options that is for a provider of ONNX Runtime that is not among the devices."""
    providers = {_QNN if name.partition(":")[0] == "qnn" else provider_of_device(name) for name in devices}
    for key, value in entries.items():
        if key in _READERS and providers.isdisjoint(_READERS[key]):
            warnings.warn(
                f"the run options ask for {key!r} = {value!r}, which none of the session's devices "
                f"({', '.join(devices)}) reads; leave the entry out, or name a device that reads it",
                DriverWarning,
                stacklevel=2,
            )


def _pairs(
    providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(providers, str):
        raise InvalidOptionError(f"providers are a list of names, got {providers!r}; pass [{providers!r}]")
    if not isinstance(providers, Sequence):
        raise InvalidOptionError(
            f"providers are a list of names, got {type(providers).__name__!r}; sessions take options by name: "
            "options=Options(...), sess_options=SessionOptions()"
        )
    if provider_options is not None and len(provider_options) != len(providers):
        raise InvalidOptionError(
            f"providers and provider_options go together one by one, got {len(providers)} and {len(provider_options)}"
        )
    pairs: list[tuple[str, Mapping[str, Any]]] = []
    for position, provider in enumerate(providers):
        name, options = provider if isinstance(provider, tuple) else (provider, {})
        pairs.append((name, provider_options[position] if provider_options is not None else options))
    return pairs
