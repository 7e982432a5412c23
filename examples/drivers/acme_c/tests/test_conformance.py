"""The device does what it says."""

import pytest


@pytest.mark.conformance("acme_c", short=True)
def test_conformance(conformance_case):
    conformance_case.check()
