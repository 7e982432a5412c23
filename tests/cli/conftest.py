"""Model files, and the command line as a function."""

from __future__ import annotations

import onnx
import pytest
from click.testing import CliRunner

from nnadapter.cli import main
from tests.models import CHAIN, HEAD, SANDWICH, parse

MODELS = {
    "chain.onnx": CHAIN,
    "sandwich.onnx": SANDWICH,
    "scores.onnx": f"""{HEAD} scores (float[1, 8] x) => (float[1, 8] y, bool[1, 8] b) {{
        y = Softmax(x)
        b = Greater(y, x)
    }}""",
    "picture.onnx": f"{HEAD} picture (float[1, 3, 8, 6] x) => (float[1, 3, 8, 6] y) {{ y = Neg(x) }}",
    "shared.onnx": f"""{HEAD} shared (float[N, 3] x, int64[N] i) => (float[N, 3] y) {{
        a = Relu(x)
        y = Gather(a, i)
    }}""",
    "words.onnx": f"{HEAD} words (string[2] x) => (string[2] y) {{ y = Identity(x) }}",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a temporary folder with models in it."""
    monkeypatch.chdir(tmp_path)
    for name, text in MODELS.items():
        onnx.save(parse(text), name)
    return tmp_path


@pytest.fixture
def call(folder):
    """Return a function that calls `nnadapter` and returns click's result; unexpected exceptions propagate."""

    def invoke(words, exit_code=0, **settings):
        result = CliRunner(**settings).invoke(main, words.split(), catch_exceptions=False)
        assert result.exit_code == exit_code, result.output
        return result

    return invoke
