from pathlib import Path

import pytest

import nnadapter as nna


class Opened(Exception):  # noqa: N818  not an error
    """Raised when a session would be opened."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ("priority", nna.Options().rules, None)),
        ("--rules r.toml --plan p.json --policy latency", ("latency", Path("r.toml"), "p.json")),
    ],
)
def test_placement_options_reach_the_session(call, folder, monkeypatch, arguments, expected):
    def opened(model, devices, options):
        raise Opened(options)

    monkeypatch.setattr(nna, "InferenceSession", opened)
    for name in ("r.toml", "p.json"):
        (folder / name).touch()
    with pytest.raises(Opened) as caught:
        call(f"run chain.onnx --fallback allow {arguments}")
    (options,) = caught.value.args
    assert (options.policy, options.rules, options.plan) == expected
    assert options.fallback == "allow"
