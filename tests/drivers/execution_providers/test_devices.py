from __future__ import annotations

import sys

import onnxruntime
import pytest

import nnadapter as nna
from nnadapter import ort
from nnadapter.drivers import DynamicShapes, providers
from nnadapter.drivers.execution_providers import EpDriver, backing
from nnadapter.drivers.providers import has_hardware
from nnadapter.drivers.registry import HardwareNeeds
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, FallbackWarning
from tests.models import CHAIN, parse
from tests.watching import watched


def rows():
    return {row.name: row for row in EpDriver().devices()}


def test_every_provider_except_the_cpu_is_listed():
    expected = {f"ort:{name.removesuffix('ExecutionProvider')}" for name in onnxruntime.get_all_providers()}
    assert expected - {"ort:CPU"} <= rows().keys() and "ort:CPU" not in rows()


def test_devices_have_availability_or_a_reason():
    available = {*onnxruntime.get_available_providers(), *backing.installed()}
    for row in rows().values():
        assert row.available <= (row.sub_type in available)
        assert row.sub_type in backing.installed() or row.available == (
            row.sub_type in available and has_hardware(row.sub_type)
        )
        assert row.available or "to get it, use" in row.reason or "lacks the hardware" in row.reason


def test_provider_without_hardware_is_unavailable(monkeypatch):
    """The case of onnxruntime-gpu without a GPU: ONNX Runtime itself silently uses its CPU."""
    if has_hardware("CUDAExecutionProvider"):
        pytest.skip("this machine has an NVIDIA GPU")
    provider_names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: provider_names)
    row = rows()["ort:CUDA"]
    assert not row.available and not row.installable and "lacks the hardware" in row.reason
    with pytest.warns(FallbackWarning, match="'CUDAExecutionProvider' is not available in this installation"):
        assert nna.InferenceSession(parse(CHAIN), providers=provider_names).devices == ("cpu",)
    with pytest.raises(DeviceUnavailableError, match="lacks the hardware"):
        nna.InferenceSession(parse(CHAIN), devices="ort:CUDA")


def test_kernel_based_providers_support_dynamic_shapes():
    sizes = [EpDriver().open(name).capability.dynamic_shapes for name in ("CUDA", "webgpu", "Tensorrt")]
    assert sizes == [DynamicShapes.ANY, DynamicShapes.ANY, DynamicShapes.NONE]


@pytest.mark.parametrize(
    ("device", "kind", "words"),
    [
        ("ort", DeviceNotFoundError, "name of a provider"),
        ("ort:CPU", DeviceNotFoundError, "is the device 'cpu'"),
        ("ort:cpuexecutionprovider", DeviceNotFoundError, "is the device 'cpu'"),
        ("ort:Rknpu", DeviceUnavailableError, "has no 'RknpuExecutionProvider'; to get it, use .* 'library'"),
        ("ort:nothing", DeviceUnavailableError, "has no 'nothing'"),
    ],
)
def test_invalid_devices_are_reported(device, kind, words):
    with pytest.raises(kind, match=words):
        nna.InferenceSession(parse(CHAIN), devices=device)


@pytest.mark.parametrize("device", ["ort:Azure", "ort:azure", "ort:AzureExecutionProvider"])
def test_provider_name_in_any_form(device):
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no AzureExecutionProvider")
    report = nna.partition_report(parse(CHAIN), devices=device, options=nna.Options(fallback="allow"))
    assert report.coverage.nodes == 0 and "AzureExecutionProvider takes no node" in str(report)


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Yield a function that installs a package with a provider called Acme."""

    def install(code=None):
        folder = tmp_path / "acme-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{backing.GROUP}]\nAcmeExecutionProvider = acme_npu\n")
        if code:
            (tmp_path / "acme_npu.py").write_text(f"def get_library_path():\n    {code}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("acme_npu", None)


def test_listing_names_registers_no_library(acme):
    acme("return '/there/is/no/such/library.so'")
    previous = dict(backing._registered)
    with watched(backing.register, lambda arguments, _: arguments["provider"]) as registered:
        assert "ort:Acme" in {row.name for row in nna.devices()}
    assert not registered and backing._registered == previous and "acme_npu" not in sys.modules


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return '/there/is/no/such/library.so'", "no library at '/there/is/no/such/library.so'"),
        ("return __file__", "cannot be registered with ONNX Runtime"),
        ("raise ValueError('none')", "does not report its provider's library"),
    ],
)
def test_unusable_package_is_listed_with_its_reason(acme, code, words):
    acme(code)
    row = rows()["ort:Acme"]
    assert not row.available and words in row.reason and row.distribution == "acme 1.0"
    with pytest.raises(DeviceUnavailableError, match=words):
        nna.InferenceSession(parse(CHAIN), devices="ort:acme")
    with pytest.warns(FallbackWarning, match="'AcmeExecutionProvider' is not available in this installation"):
        assert nna.InferenceSession(parse(CHAIN), providers=["AcmeExecutionProvider"]).devices == ("cpu",)


def test_package_with_a_crashing_library_is_listed(acme):
    acme("import os; os.abort()")
    row = rows()["ort:Acme"]
    assert not row.available and "crashed the test process" in row.reason


def test_plug_in_without_known_hardware_is_available(monkeypatch):
    """WebGPU, for instance, works with a software adapter."""
    if "QNNExecutionProvider" not in backing.installed():
        pytest.skip("onnxruntime-qnn is not installed")
    nowhere = HardwareNeeds(("no system",))
    monkeypatch.setattr(providers, "NEEDS", {**providers.NEEDS, "QNNExecutionProvider": nowhere})
    assert not has_hardware("QNNExecutionProvider") and rows()["ort:QNN"].available


def test_package_without_a_library_path(acme):
    acme()
    with pytest.raises(DeviceUnavailableError, match="acme 1.0 does not report"):
        nna.InferenceSession(parse(CHAIN), devices="ort:Acme")


def test_invalid_plug_in_library_is_reported(tmp_path):
    path = tmp_path / "libacme.so"
    path.write_bytes(b"no library at all")
    with pytest.raises(DeviceUnavailableError, match="cannot be registered with ONNX Runtime .*libacme"):
        nna.InferenceSession(parse(CHAIN), devices=("ort:Acme", {"library": str(path)}))


def test_available_providers_of_a_client_become_devices_with_options():
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no AzureExecutionProvider")
    providers = [("AzureExecutionProvider", {"a": 1}), "fake_npu", "CPUExecutionProvider"]
    with pytest.warns(FallbackWarning, match="'ort:Azure' took none of the"):
        session = ort.InferenceSession(parse(CHAIN).SerializeToString(), providers=providers)
    assert session.devices == ("ort:Azure", "fake_npu", "cpu")
    assert session.report().device_options["ort:Azure"]["provider_options"] == "a=1"
    assert session.get_providers() == ["AzureExecutionProvider", "fake_npu", "CPUExecutionProvider"]
