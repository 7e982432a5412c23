"""Session options: accepted values and error messages."""

from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError
from nnadapter.options import STAGES, fallback_text


def test_fallback_is_common_or_per_stage():
    assert {nna.Options(fallback="allow").fallback_at(stage) for stage in STAGES} == {"allow"}
    options = nna.Options(fallback={"run": "forbid", "compile": "allow"})
    assert [options.fallback_at(stage) for stage in STAGES] == ["warn", "allow", "forbid", "warn"]
    assert fallback_text(options.fallback) == "load: warn, compile: allow, run: forbid, accuracy: warn"
    assert fallback_text("warn") == "warn"


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        ("forbit", "did you mean 'forbid'"),
        (None, "one of warn, allow, forbid"),
        ({"run": "never"}, "one of warn, allow, forbid, got 'never'"),
        ({"runs": "warn"}, "no stage 'runs'; did you mean 'run'"),
        ({3: "warn"}, "no stage 3; known: accuracy"),
    ],
)
def test_invalid_fallback_is_refused(fallback, words):
    with pytest.raises(InvalidOptionError, match=words):
        nna.Options(fallback=fallback)
