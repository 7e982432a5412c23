from __future__ import annotations

import pytest

from partition.by_cost.pricing import Origin, OriginKind, all_on

PARAMETERS = {
    OriginKind.ALL_ON: ("cpu",),
    OriginKind.CUT_ALONG_PATHS: (2,),
    OriginKind.CUT_WITH_SHARES: (0.25,),
    OriginKind.CUT_WITH_RETURNS: (3,),
    OriginKind.PAIR: ("cpu", "npu"),
    OriginKind.ONE_REPEAT: (39,),
    OriginKind.ONE_REPEAT_PER_RUN: (2,),
}


@pytest.mark.parametrize("kind", OriginKind)
def test_every_kind_of_origin_has_a_text(kind):
    words = str(Origin(kind, PARAMETERS.get(kind, ()), all_on("npu")))
    assert words and "{" not in words and all(str(each) in words for each in PARAMETERS.get(kind, ()))


def test_nested_origins_have_one_text():
    search = Origin(OriginKind.SEARCH, base=Origin(OriginKind.CUT_WITH_SHARES, (0.5,)))
    found = Origin(OriginKind.MOVED_ALIKE, base=Origin(OriginKind.ONE_REPEAT, (12,), search))
    assert str(found) == "one of 12 repeats: search from cut with 0.5 launches per crossing, all moved together"
    assert str(all_on("cpu")) == "all on cpu" and all_on("cpu") == Origin(OriginKind.ALL_ON, ("cpu",))


@pytest.mark.parametrize(("kind", "parameters"), [(OriginKind.ALL_ON, ()), (OriginKind.CUT_WITH_SHARES, ("much",))])
def test_wrong_parameters_are_refused(kind, parameters):
    with pytest.raises(ValueError, match=f"{kind} cannot have the parameters"):
        Origin(kind, parameters)
