from __future__ import annotations

import pytest

from nnadapter.drivers import registry
from nnadapter.drivers.interface import Device
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError


def rows():
    return {row.name: row for row in registry.devices()}


def test_built_in_and_installed_drivers_are_listed_sorted():
    names = [row.name for row in registry.devices()]
    assert names == sorted(names) and {"cpu", "fake_npu", "null", "trial"} <= set(names)
    assert rows()["trial"].available and rows()["trial"].distribution == "trial 1.0"
    assert all(row.available for name, row in rows().items() if name in ("cpu", "fake_npu", "null"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("old", "driver interface 0.9"),
        ("abstract", "lacks the required methods open"),
        ("notadriver", "expected a sub-class"),
        ("missing", "trial_driver_that_is_not_there"),
        ("noclass", "NoSuchClass"),
        ("twice", "two drivers are named 'twice'.*trial.*rival"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_row_with_its_reason(name, words):
    row = rows()[name]
    assert not row.available
    with pytest.raises(DeviceUnavailableError, match=words) as caught:
        registry.open_device(name)
    assert row.reason in str(caught.value)


def test_a_plug_in_cannot_take_a_built_in_name():
    assert registry.sources()["cpu"].distribution == "nnadapter"
    assert rows()["cpu"].available
    shadowed = rows()["cpu of rival 1.0"]
    assert not shadowed.available and "is named 'cpu', which is built in" in shadowed.reason


def test_unknown_devices_get_close_names():
    with pytest.raises(DeviceNotFoundError, match=r"'fake_mpu'; did you mean 'fake_npu'\?"):
        registry.open_device("fake_mpu")


def test_a_device_that_does_not_open_blames_its_driver():
    with pytest.raises(DeviceUnavailableError, match="slot 9 is empty"):
        registry.open_device("trial:9")


def test_devices_are_opened_once():
    first = registry.open_device("trial:1")
    assert isinstance(first, Device) and registry.open_device("trial:1") is first


@pytest.mark.parametrize("name", ["cpu:1", "null:7", "fake_npu:99"])
def test_ids_that_do_not_exist(name):
    with pytest.raises((DeviceNotFoundError, DeviceUnavailableError)):
        registry.open_device(name)
