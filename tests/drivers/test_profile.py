"""Checks of a device's reported speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnadapter.drivers import Capability, ModelForm, Profile
from nnadapter.drivers.boundary import ask_profile
from nnadapter.drivers.capability import flaw
from nnadapter.drivers.registry import devices, open_device

GOOD = Profile(peak_flops=1e9, bandwidth=1e9, launch_seconds=0, transfer_seconds=0.0, transfer_bandwidth=1)


class ProfileContext:
    def __init__(self, profile):
        self.declared = profile

    def profile(self):
        return self.declared


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peak_flops": 0}, "peak_flops is 0, expected a finite number above 0"),
        ({"bandwidth": float("inf")}, "bandwidth is inf, expected"),
        ({"bandwidth": True}, "bandwidth is True"),
        ({"transfer_bandwidth": "fast"}, "transfer_bandwidth is 'fast'"),
        ({"launch_seconds": -1e-9}, "launch_seconds is -1e-09, expected finite seconds, 0 or more"),
        ({"transfer_seconds": float("nan")}, "transfer_seconds is nan"),
        ({"operation_seconds": None}, "operation_seconds is None"),
        ({"peak_of_dtype": {"int9": 1e9}}, "expected a mapping from data types"),
        ({"peak_of_dtype": {"int8": 0.0}}, "expected a mapping from data types"),
        ({"boundary_dtypes": frozenset({"int9"})}, "expected None or a frozenset of data types"),
        ({"boundary_dtypes": "float32"}, "expected None or a frozenset"),
        ({"channels_last": 1}, "channels_last is 1, expected True or False"),
    ],
)
def test_invalid_profiles_are_refused(changes, reason):
    wrong = replace(GOOD, **changes)
    assert reason in flaw(wrong)
    refused = ask_profile(ProfileContext(wrong), Capability(form=ModelForm.IR))
    assert not refused and reason in refused.detail and refused.detail.endswith("ask its vendor")


def test_valid_profile_passes():
    assert flaw(GOOD) == ""
    assert flaw(replace(GOOD, peak_of_dtype={"int8": 4e9}, boundary_dtypes=frozenset({"float16"}))) == ""
    assert "it is dict, expected" in flaw({"peak_flops": 1e9})


def test_context_overrides_the_capability():
    declared, under_options = replace(GOOD, peak_flops=1.0), replace(GOOD, peak_flops=2.0)
    capability = Capability(form=ModelForm.IR, profile=declared)
    assert ask_profile(ProfileContext(None), capability) is declared
    assert ask_profile(ProfileContext(under_options), capability) is under_options
    assert ask_profile(ProfileContext(None), Capability(form=ModelForm.IR)) is None


def test_profiles_of_built_in_devices_are_valid():
    profiles = {row.name: row.capability.profile for row in devices() if row.available and row.capability is not None}
    assert all(profile is None or not flaw(profile) for profile in profiles.values())
    assert profiles["cpu"].host_memory and profiles["reference"].peak_flops < profiles["cpu"].peak_flops
    assert open_device("fake_npu").capability.profile is None
