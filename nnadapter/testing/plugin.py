"""Pytest plug-in (`-p`): a test with the fixture `conformance_case` runs for each case of a device.

The marker `conformance` names the device.
"""

from __future__ import annotations

import pytest

_FIXTURE = "conformance_case"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "conformance(device, **settings): run the test with every conformance case of this device; the settings are "
        "those of nnadapter.testing.conformance_cases",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use the fixture."""
    if _FIXTURE not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("conformance")
    if marker is None:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid} uses {_FIXTURE!r} without a marker; "
            'add @pytest.mark.conformance("DEVICE") above it'
        )
    from nnadapter.testing.kit import conformance_cases

    cases = conformance_cases(*marker.args, **marker.kwargs)
    metafunc.parametrize(_FIXTURE, cases, ids=[case.name for case in cases])
