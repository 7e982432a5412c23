"""Plans of models whose branches inputs choose, kept in a cache: each is found by the choice that it was made for."""

from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.kept_plans.engine import KeptEngine
from tests.models import parse
from tests.running.test_choices import BEHIND, FEEDS, FLAG, RATE, SHARED, check


@pytest.mark.parametrize("text", [FLAG, RATE, SHARED, BEHIND], ids=["flag", "rate", "shared", "behind"])
def test_each_choice_is_kept(tmp_path, text):
    model, options = parse(text), nna.Options(cache_dir=tmp_path / "kept", fallback="allow")
    for turn, feeds in enumerate((FEEDS[text][:1], FEEDS[text][1:], FEEDS[text], FEEDS[text])):
        with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
            assert isinstance(session._engine, KeptEngine) is (turn > 0)
            for feed in feeds:
                assert check(session, model, feed) == {"fake_npu"}
            if turn > 1:
                assert session._engine._planned is None  # all that the two before made is there
