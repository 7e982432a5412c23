"""The device passes the short form of the conformance kit."""

import pytest

from nnadapter.testing import conformance_cases


@pytest.mark.parametrize("case", conformance_cases("acme_python", short=True), ids=str)
def test_conformance(case):
    case.check()
