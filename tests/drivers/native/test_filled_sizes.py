"""Drivers in C that compile for fixed sizes: plans of a class are filled by one table, whoever runs meanwhile."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import nnadapter as nna
from tests.c_compiler import acme_among_devices, needs_compiler
from tests.drivers.native.test_open_sizes import HEAD, PRODUCTS, SIZES, agree, feed_of
from tests.models import numbers, parse

LAYERS = f"""{HEAD} g (float[n, m] x, float[n, m] w) => (float[n, m] y)
    <float[1] p = {{1}}, float[1] q = {{2}}, float[1] r = {{3}}> {{
    a = Add (x, p) b = Sin (a) c = Add (b, q) d = Sin (c) e = Add (d, r) f = Sin (e) y = Add (f, w)
}}"""
"""Segments that are alike but for a constant, between others of the CPU."""


@pytest.fixture
def fixed(tmp_path):
    """The example driver is among the devices, and compiles for fixed sizes."""
    with acme_among_devices(tmp_path, "-DACME_OPEN_SIZES=NNADAPTER_SIZES_NONE", name="fixed_acme") as name:
        yield name


@needs_compiler
@pytest.mark.parametrize("limit", [2, 64])
def test_many_threads_with_sizes_of_their_own(fixed, limit):
    model = parse(PRODUCTS)
    with nna.InferenceSession(model, devices=fixed, options=nna.Options(fallback="allow", max_plans=limit)) as session:

        def work(seed):
            chosen = random.Random(seed)
            for _ in range(25):
                agree(session, model, feed_of(*chosen.choice(SIZES)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        plans = session.report().plans
    assert "class" in plans.sizes and plans.kept <= limit


@needs_compiler
def test_segments_that_are_alike_keep_their_constants(fixed):
    model = parse(LAYERS)
    with nna.InferenceSession(model, devices=fixed, options=nna.Options(fallback="allow")) as session:
        for shape in ((2, 3), (4, 1), (1, 1), (1, 5), (2, 3), (7, 9), (0, 3)):
            agree(session, model, {"x": numbers(*shape), "w": numbers(*shape, seed=1)})
        assert [segment.device for segment in session.report().segments].count(fixed) == 4
