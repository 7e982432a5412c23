"""Wrong ops planted in random graphs and in real networks: found with few compilations."""

from __future__ import annotations

from math import log2
from random import Random

import numpy as np
import pytest

import nnadapter as nna
from tests.inference.layers.random_graphs import COLUMNS, ROWS, GraphMaker
from tests.models import OCR_SHAPES, numbers, ocr_model

LONG = [pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(10, 100)]
BESIDE = 4
"""Compilations in addition to two searches: all atoms at once, the found nodes again, and both ends."""


def assert_named(model, name, feed, options=None):
    report = nna.compare(model, ("planted", {"wrong": [name]}), feed, layers=True, options=options)
    assert name in report.layers.local_errors[0].nodes
    assert report.layers.compilations <= 2 * log2(report.layers.atoms) + BESIDE
    return report.layers


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(10), *LONG])
@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
def test_error_in_random_graphs_is_found(seed):
    model, random = GraphMaker(seed).model(), Random(seed)
    bans = [nna.Ban(device="planted", op_type=each) for each in random.sample(("Tanh", "Concat", "Softmax", "Neg"), 2)]
    options = nna.Options(rules=nna.Rules(bans=tuple(bans)))
    feed = {"x": np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)}
    clean = nna.compare(model, "planted", feed, layers=True, options=options)
    assert not clean.layers.local_errors
    nodes = nna.partition_report(model, "planted", options=options).nodes
    name = random.choice([node.name for node in nodes if node.device == "planted" and node.op_type != "ArgMax"])
    assert [finding.nodes for finding in assert_named(model, name, feed, options).local_errors[1:]] == []


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [*(pytest.param(each, marks=pytest.mark.fuzz) for each in ("det", "rec")), "cls"])
def test_error_in_networks_is_found(kind):
    model, shape = ocr_model(kind), OCR_SHAPES[kind][-1 if kind == "det" else 0]
    nodes = nna.partition_report(model, "planted", {"x": shape}).nodes
    names = [node.name for node in nodes if node.device == "planted"]
    for name in Random(kind).sample(names, 2):
        assert_named(model, name, {"x": numbers(*shape) / 2})
