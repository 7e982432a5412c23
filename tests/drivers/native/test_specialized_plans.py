"""C drivers that compile for static sizes: specialized plans, used from many threads."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nnadapter as nna
from tests.c_compiler import acme_among_devices, needs_compiler
from tests.drivers.native.test_dynamic_shapes import HEAD, PRODUCTS, SIZES, agree, feed_of
from tests.models import numbers, parse

LAYERS = f"""{HEAD} g (float[n, m] x, float[n, m] w) => (float[n, m] y)
    <float[1] p = {{1}}, float[1] q = {{2}}, float[1] r = {{3}}> {{
    a = Add (x, p) b = Sin (a) c = Add (b, q) d = Sin (c) e = Add (d, r) f = Sin (e) y = Add (f, w)
}}"""
"""Segments that differ only in a constant, separated by CPU steps."""


@pytest.fixture
def static_acme(tmp_path):
    """Add the example driver, compiled for static sizes, to the devices."""
    with acme_among_devices(tmp_path, "-DACME_OPEN_SIZES=NNADAPTER_SHAPES_STATIC", name="fixed_acme") as name:
        yield name


@pytest.mark.sweep
@needs_compiler
@pytest.mark.parametrize("limit", [2, 64])
def test_many_threads_with_different_sizes(static_acme, limit):
    model = parse(PRODUCTS)
    with nna.InferenceSession(
        model, devices=static_acme, options=nna.Options(fallback="allow", max_plans=limit)
    ) as session:

        def work(seed):
            chosen = random.Random(seed)
            for _ in range(25):
                agree(session, model, feed_of(*chosen.choice(SIZES)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        plans = session.report().plans
    assert "class" in plans.served_shapes_text and plans.in_cache <= limit


@needs_compiler
def test_identical_segments_keep_their_constants(static_acme):
    model = parse(LAYERS)
    with nna.InferenceSession(model, devices=static_acme, options=nna.Options(fallback="allow")) as session:
        for shape in ((2, 3), (4, 1), (1, 1), (1, 5), (2, 3), (7, 9), (0, 3)):
            agree(session, model, {"x": numbers(*shape), "w": numbers(*shape, seed=1)})
        assert [segment.device for segment in session.report().segments].count(static_acme) == 4


REFUSING = (
    "-DACME_OPEN_SIZES=NNADAPTER_SHAPES_STATIC",
    "-Dnnadapter_driver=inner_driver",
    str(Path(__file__).parent / "refusing.c"),
)


@pytest.mark.sweep
@needs_compiler
def test_operation_refused_at_some_sizes_falls_back_there(tmp_path):
    model = parse(LAYERS)
    with acme_among_devices(tmp_path, *REFUSING, name="choosy_acme") as name:
        library = ctypes.CDLL(str(tmp_path / f"nnadapter_{name}.so"))
        with nna.InferenceSession(model, devices=name, options=nna.Options(fallback="allow")) as session:
            for rows in (4, 5, 10, 6, 11, 7, 9, 8, 12, 10, 6):
                judged, refused = library.refusing_judged(), library.refusing_refused_operations()
                agree(session, model, {"x": numbers(rows, 3), "w": numbers(rows, 3, seed=1)})
                delegated = [step.device for step in session.provenance.steps].count(name)
                assert delegated == 4 - (rows in (9, 10, 11))
                if rows in (7, 8, 12):  # one verdict per segment
                    assert library.refusing_judged() - judged == 4 and library.refusing_refused_operations() == refused
        assert library.refusing_refused_operations() and not library.refusing_forced()


@pytest.mark.slow
@needs_compiler
def test_segment_refused_for_its_contents_does_not_share_a_program(tmp_path):
    model = parse(LAYERS)
    with acme_among_devices(tmp_path, *REFUSING, name="refusing_acme") as name:
        library = ctypes.CDLL(str(tmp_path / f"nnadapter_{name}.so"))
        with nna.InferenceSession(model, devices=name, options=nna.Options(fallback="allow")) as session:
            for shape in ((4, 3), (5, 1), (2, 3), (3, 2), (1, 4), (7, 9)):
                queries = library.refusing_asked()
                agree(session, model, {"x": numbers(*shape), "w": numbers(*shape, seed=1)})
                delegated = [step.device for step in session.provenance.steps].count(name)
                assert delegated == 4 - (shape[0] in (1, 2, 3)) and library.refusing_asked() - queries >= 4
        assert library.refusing_refused() and not library.refusing_forced()
