"""The exercise of docs/tutorial.md, step by step, on small networks of the same structure."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from benchmarks.models.encoders import bert
from benchmarks.models.language_models import Sizes
from benchmarks.models.quantized_models import resnet
from nnadapter.drivers import registry
from nnadapter.new_driver import write_driver
from nnadapter.testing import Settings, run_conformance

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n# (\S+)(, instead of [^\n]+)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LENGTH = 12


@pytest.fixture(scope="module")
def networks():
    """Return each network with a feed."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 50, (1, LENGTH))
    mask = (np.arange(LENGTH) < 9).astype(np.int64)[None]
    return {
        "resnet50": (
            resnet([1, 1, 1, 1], is_deep=True, size=32).SerializeToString(),
            {"x": generator.normal(size=(1, 3, 32, 32)).astype(np.float32)},
        ),
        "bert": (
            bert(Sizes(layers=2, width=32, heads=4, words=50, positions=16), LENGTH).SerializeToString(),
            {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)},
        ),
    }


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that installs the output of `nnadapter new-driver` with some blocks of the page.

    Each stage has its own device name, because opened devices stay open.
    """

    def make(name, *blocks):
        folder = tmp_path / name
        write_driver(name, folder)
        info = folder / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        point = re.search(rf'^{name} = "(.+)"$', (folder / "pyproject.toml").read_text(), re.MULTILINE)[1]
        (info / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{name} = {point}\n")
        for file, instead, code in blocks:
            path = tmp_path / file.replace("my_npu", name)
            before = path.read_text() + "\n\n" if instead else ""
            path.write_text(before + code.replace("my_npu", name).replace("MyNpu", name.title().replace("_", "")))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
        registry.refresh()
        return name

    yield make
    monkeypatch.undo()
    registry.refresh()


def first_wish(network, device):
    return nna.what_if(network[0], device).road_map[0].labels


def test_steps_of_the_tutorial_run_both_networks(package, networks):
    pictures, first_driver, language, second_driver, mended = BLOCKS
    assert first_wish(networks["resnet50"], package("new_npu")) == ("Conv",)
    first = package("picture_npu", pictures, first_driver)
    report = nna.partition_report(networks["resnet50"][0], first)
    assert [node.op_type for node in report.nodes if node.device == "cpu"] == ["Flatten", "Gemm"]
    assert first_wish(networks["bert"], first) == ("MatMul",)
    second = package("language_npu", pictures, language, second_driver)
    for model, feed in networks.values():
        expected = onnxruntime.InferenceSession(model).run(None, feed)
        with nna.InferenceSession(model, devices=second, options=nna.Options(fallback="forbid")) as session:
            results = session.run(None, feed)
            assert [segment.device for segment in session.report().segments] == [second]
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    third = package("mended_npu", pictures, language, second_driver, mended)
    card = run_conformance(Settings(device=third, short=True), limit=10)
    assert card.all_passed


def test_commands_of_the_tutorial():
    commands = [shlex.split(line) for line in re.findall(r"^ {4}(\S.+)$", PAGE, re.MULTILINE)]
    assert [command[1] for command in commands if command[0] == "nnadapter"] == [
        "new-driver", "report", "report", "compare", "compare", "conformance"
    ]  # fmt: skip
