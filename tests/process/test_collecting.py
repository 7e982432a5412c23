"""The collector is paused as long as anybody asks for it, and left as it was found."""

import gc

import pytest

from nnadapter.process.collecting import paused_collection


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_pauses_within_pauses(enabled):
    with paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_goes_on_after_an_error(enabled):
    with pytest.raises(ValueError, match="x"), paused_collection():
        raise ValueError("x")
    assert gc.isenabled() is enabled
