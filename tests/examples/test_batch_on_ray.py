"""Parts of examples/batch_on_ray.py; tests/ray runs entire jobs."""

import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

PROGRAM = Path(__file__).parents[2] / "examples" / "batch_on_ray.py"


class SlowReader:
    """RapidOCR as in its newer versions, where models are loaded lazily."""

    def __init__(self, params):
        self.text_rec = None

    def _load_rec_model(self):
        time.sleep(0.02)
        self.text_rec = "there"


def test_threads_share_a_reader_with_loaded_models(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", SimpleNamespace(RapidOCR=SlowReader))
    reader = runpy.run_path(str(PROGRAM))["reader"]
    with ThreadPoolExecutor(4) as pool:
        readers = list(pool.map(lambda _: reader().text_rec, range(4)))
    assert readers == ["there"] * 4
