"""Hardware and options of a provider, and sessions without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import onnxruntime
import pytest

from nnadapter.drivers.execution_providers import Backing, backing, find_backing, read_provider_options, takes_addition
from nnadapter.drivers.execution_providers.backing import OPTIONS
from nnadapter.errors import DeviceUnavailableError, DriverWarning, InvalidOptionError

ASSIGNMENT = "get_provider_graph_assignment_info"
DEFAULTS = {option.name: option.default for option in OPTIONS}


@dataclass
class Hardware:
    """Stand-in for a device in `onnxruntime.get_ep_devices`."""

    kind: str
    ep_name: str = "AcmeExecutionProvider"
    ep_metadata: dict = field(default_factory=lambda: {"version": "1.2"})

    @property
    def device(self):
        return SimpleNamespace(type=SimpleNamespace(name=self.kind.upper()))


@pytest.fixture
def acme(monkeypatch, tmp_path):
    """Return a function that registers a provider with some kinds of hardware and two options."""
    path = tmp_path / "libacme.so"
    path.write_bytes(b"...speed\0...depth\0")

    def offer(*kinds):
        devices = [Hardware(kind) for kind in kinds]
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices)
        return str(path)

    return offer


def backing_of(path, **options):
    return find_backing("AcmeExecutionProvider", {**DEFAULTS, "library": path, **options})


@pytest.fixture(autouse=True)
def forget_libraries():
    registered = dict(backing._registered)
    yield
    backing._registered.clear()
    backing._registered.update(registered)


@pytest.mark.parametrize(
    ("offered", "requested", "kinds"),
    [
        (("cpu", "npu", "gpu"), "any", ["npu"]),
        (("cpu", "gpu", "gpu"), "any", ["gpu", "gpu"]),
        (("cpu",), "any", ["cpu"]),
        (("cpu", "npu"), "cpu", ["cpu"]),
    ],
)
def test_hardware_is_of_one_kind(acme, offered, requested, kinds):
    assert [device.kind for device in backing_of(acme(*offered), hardware=requested).devices] == kinds


def test_requested_npu_is_never_a_cpu(acme):
    with pytest.raises(DeviceUnavailableError, match="has no npu hardware on this machine, only cpu, gpu"):
        backing_of(acme("cpu", "gpu"), hardware="npu")


def test_library_without_hardware_is_reported(acme, monkeypatch):
    registered = []
    monkeypatch.setattr(
        onnxruntime, "register_execution_provider_library", lambda *arguments: registered.append(arguments[0])
    )
    monkeypatch.setattr(onnxruntime, "unregister_execution_provider_library", registered.remove)
    with pytest.raises(DeviceUnavailableError, match="supports no hardware of this machine"):
        backing_of(acme())
    assert registered == []


def test_unknown_library_options_raise_a_warning(acme):
    path = acme("npu")
    assert backing_of(path, provider_options=("speed=3",)).options == {"speed": "3"}
    with pytest.warns(DriverWarning, match="has no option 'sped' in its library"):
        backing_of(path, provider_options=("sped=3", "depth=a=b"))


@pytest.mark.parametrize("text", [("speed",), ("=3",), ("a=1", "a=2")])
def test_provider_options_are_pairs(text):
    with pytest.raises(InvalidOptionError, match="NAME=VALUE"):
        read_provider_options(text)


def test_hardware_of_a_built_in_provider_cannot_be_chosen():
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no AzureExecutionProvider")
    with pytest.raises(InvalidOptionError, match="leave the option 'hardware' out"):
        find_backing("Azure", {**DEFAULTS, "hardware": "npu"})


def test_error_of_a_failing_provider_has_its_options():
    provider_backing = Backing(provider="RknpuExecutionProvider", options={"speed": "3"})
    with pytest.raises(InvalidOptionError, match="does not start: .*got speed=3"):
        takes_addition(provider_backing)


def test_old_onnxruntime_is_reported(monkeypatch):
    owner = next(kind for kind in onnxruntime.InferenceSession.__mro__ if ASSIGNMENT in vars(kind))
    monkeypatch.delattr(owner, ASSIGNMENT)
    with pytest.raises(DeviceUnavailableError, match="'ort:Azure' needs onnxruntime 1.24 or later"):
        find_backing("Azure", DEFAULTS)


class LeftOut(Backing):
    def session_options(self, level=None):
        return onnxruntime.SessionOptions()


def test_a_session_without_its_provider_is_refused():
    with pytest.raises(InvalidOptionError, match="opened a session without AcmeExecutionProvider"):
        takes_addition(LeftOut(provider="AcmeExecutionProvider"))
