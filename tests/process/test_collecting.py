"""The collector is paused while a function runs, and left as it was found."""

import gc

import pytest

from nnadapter.process.collecting import paused_collection


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


@paused_collection
def inner():
    assert not gc.isenabled()


@paused_collection
def outer():
    inner()
    assert not gc.isenabled()


@paused_collection
def fails():
    raise ValueError("x")


def test_pauses_within_pauses(enabled):
    outer()
    assert gc.isenabled() is enabled


def test_goes_on_after_an_error(enabled):
    with pytest.raises(ValueError, match="x"):
        fails()
    assert gc.isenabled() is enabled
