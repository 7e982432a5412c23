"""Broken libraries are listed with a remedy and affect nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from onnx import parser

from nnadapter import partition_report
from nnadapter.drivers import registry
from nnadapter.drivers.native import missing_bytes
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError
from tests.c_compiler import compile_library, needs_compiler

TRIAL = Path(__file__).with_name("trial.c")
CHECKS = '"checks_indices", .kind=NNADAPTER_KIND_BOOL, .value.boolean=1'
INDEXING = """<ir_version: 10, opset_import: ["": 17, "com.trial": 1]>
g (float[2,3] x, int64[2] i) => (float[2,3] y) <float[2,3] a> {
    j = Add(i, i) a = com.trial.Scale(x) y = Gather(a, j)
}"""
BAD = {
    "nosymbol": (["-DNO_SYMBOL", "-Wno-unused"], r"exports no nnadapter_driver; it is not a driver"),
    "major": (["-DTABLE_VERSION=(2u<<16)"], r"was written for driver interface 2\.0, this nnadapter has 1\.0; install"),
    "minor": (["-DTABLE_VERSION=NNADAPTER_VERSION+9"], r"was written for driver interface 1\.9, .*another nnadapter"),
    "refuses": (["-DREFUSES"], r"does not support driver interface 1\.0; install a driver for 1\.x"),
    "lacking": (["-DLACKING"], r"lacks the required functions supported, destroy_program; its vendor"),
    "small": (["-DTABLE_SIZE=offsetof(NNAdapterDriver, compute)"], r"lacks the required functions compute"),
    "nosize": (["-DTABLE_SIZE=0"], r"has the size 0, expected its sizeof"),
    "half": (["-DHALF_GROUP"], r"has the functions 'serialization' without deserialize"),
    "threading": (["-DODD_THREADING"], r"threading is 12, expected one of 1, 2, 3"),
    "nulloption": (["-DNULL_OPTION"], r"2 options, of which 1 are null"),
    "property": (
        [f"-DPROPERTY={CHECKS.replace('checks', 'check')}"],
        r"bad_property: the driver's property is check_indices, expected one of checks_indices, domains, .*role",
    ),
    "value": (
        [f"-DPROPERTY={CHECKS.replace('BOOL', 'INT')}"],
        r"'bad_value' did not open: .*checks_indices of the capability is 1, expected bool",
    ),
    "role": (
        ['-DPROPERTY="role", .kind=NNADAPTER_KIND_STRING, .value.string="boss"'],
        r"bad_role: the driver's role is boss, expected one of accelerator, host, last resort",
    ),
    "kind": (['-DPROPERTY="limit", .kind=9'], r"bad_kind: the driver's attribute 'limit' has kind 9, expected"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a folder on NNADAPTER_DRIVER_PATH; call `registry.refresh` after changing it."""
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", str(tmp_path))
    yield tmp_path
    monkeypatch.delenv("NNADAPTER_DRIVER_PATH")
    registry.refresh()


def row(name):
    registry.refresh()
    rows = {listed.name: listed for listed in registry.devices()}
    assert rows["cpu"].available and rows["fake_npu"].available
    return rows[name]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_library_is_listed_with_a_remedy(folder, name):
    flags, message = BAD[name]
    compile_library(folder / f"nnadapter_bad_{name}.so", *flags, TRIAL)
    listed = row(f"bad_{name}")
    assert not listed.available and listed.distribution == "NNADAPTER_DRIVER_PATH"
    with pytest.raises(DeviceUnavailableError, match=message) as caught:
        registry.open_device(f"bad_{name}")
    assert listed.reason in str(caught.value)


@needs_compiler
def test_properties_by_name_reach_the_host_and_an_isolated_device(folder):
    compile_library(folder / "nnadapter_named.so", f"-DPROPERTY={CHECKS}", TRIAL)
    listed = row("named").capability
    assert listed.checks_indices and listed.domains == ("com.trial", "org.trial")
    isolated = registry.open_isolated("named").capability
    assert isolated.checks_indices and isolated.domains == listed.domains
    assert partition_report(parser.parse_model(INDEXING), devices="named").coverage.nodes == 1


@needs_compiler
def test_drivers_without_properties_get_no_computed_indices(folder):
    compile_library(folder / "nnadapter_unnamed.so", TRIAL)
    registry.refresh()
    model = parser.parse_model(INDEXING.replace("com.trial.Scale", "Relu"))
    assert partition_report(model, devices="unnamed").coverage.nodes == 2 / 3


@needs_compiler
def test_a_missing_dependency_is_named(folder, tmp_path):
    (tmp_path / "needed.c").write_text("int needed(void); int needed(void) { return 1; }")
    compile_library(tmp_path / "libneeded.so", "-fvisibility=default", tmp_path / "needed.c")
    flags = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-lneeded")
    compile_library(folder / "nnadapter_bad_needy.so", TRIAL, *flags)
    (tmp_path / "libneeded.so").unlink()
    assert "libneeded.so" in row("bad_needy").reason and "install its dependencies" in row("bad_needy").reason


def test_file_without_library_format(folder):
    (folder / "libnnadapter_bad_text.so").write_text("no library")
    assert "did not load" in row("bad_text").reason


def test_missing_library(folder):
    (folder / "nnadapter_bad_link.so").symlink_to(folder / "nowhere.so")
    assert "does not exist; install the driver again" in row("bad_link").reason


def test_only_names_of_libraries_count(folder):
    for name in ("acme.so", "nnadapter_.so", "nnadapter_x.txt", "nnadapter_X.so", "nnadapter_y.so.1"):
        (folder / name).write_text("")
    registry.refresh()
    assert not {"acme", "", "x", "X", "y"} & set(registry.sources())


def test_missing_folder_has_no_drivers(monkeypatch, tmp_path):
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", f"{tmp_path / 'none'}:")
    registry.refresh()
    assert "cpu" in registry.sources()


def test_names_are_listed_without_loading(folder):
    (folder / "nnadapter_bad_lazy.so").write_text("no library")
    registry.refresh()
    assert "bad_lazy" in registry.sources() and "bad_lazy" not in registry._loaded
    with pytest.raises(DeviceNotFoundError, match="did you mean 'bad_lazy'"):
        registry.open_device("bad_lazi")
    assert "bad_lazy" not in registry._loaded


def test_duplicate_names_are_listed_and_built_in_names_win(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", f"{folder}:{other}")
    for name in ("nnadapter_bad_twin.so", "nnadapter_cpu.so"):
        (folder / name).write_text("")
        shutil.copy(folder / name, other)
    listed = row("bad_twin")
    assert "two drivers are named 'bad_twin'" in listed.reason and "remove one of them" in listed.reason


@needs_compiler
@pytest.mark.parametrize("target", ["cabi_trial_module", "cabi_trial_module:LIBRARY", "cabi_trial_module:TEXT"])
def test_an_entry_point_names_a_library(tmp_path, monkeypatch, target):
    library = compile_library(tmp_path / "anything.so", TRIAL)
    (tmp_path / "cabi_trial_module.py").write_text(
        f"from pathlib import Path\nTEXT = {str(library)!r}\nLIBRARY = Path(TEXT)\n"
    )
    _distribute(tmp_path, f"cabi = {target}")
    monkeypatch.syspath_prepend(str(tmp_path))
    listed = row("cabi")
    assert listed.available and listed.distribution == "cabi 1.0" and listed.vendor == "Trial" and listed.version == "3"


def test_error_for_a_module_without_library_names_the_function(tmp_path, monkeypatch):
    (tmp_path / "cabi_empty_module.py").write_text("")
    _distribute(tmp_path, "cabi_empty = cabi_empty_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "whose LIBRARY is the path of a driver in C" in row("cabi_empty").reason


def _distribute(site, line):
    folder = site / "cabi-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cabi\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{line}\n")


@needs_compiler
@pytest.mark.parametrize("length", [0.2, 0.5, 0.9, 0.999])
def test_truncated_library(folder, tmp_path, length):
    contents = compile_library(tmp_path / "whole.so", TRIAL).read_bytes()
    cut = folder / "nnadapter_bad_cut.so"
    cut.write_bytes(contents[: int(len(contents) * length)])
    assert "are missing; reinstall the driver" in row("bad_cut").reason


@needs_compiler
def test_complete_library_lacks_nothing(tmp_path):
    assert missing_bytes(compile_library(tmp_path / "whole.so", TRIAL)) == 0
    (tmp_path / "text.so").write_text("no library")
    assert missing_bytes(tmp_path / "text.so") == 0
