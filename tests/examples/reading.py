"""RapidOCR on nnadapter or onnxruntime, and the sessions that it opened."""

import sys
from contextlib import contextmanager
from pathlib import Path

from nnadapter import ort

PICTURES = sorted((Path(__file__).parents[2] / "examples" / "pictures").glob("*.png"))


def texts_of(pictures):
    """Return texts by picture; reimport RapidOCR, so that it uses the current onnxruntime module."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rapidocr"]:
        del sys.modules[name]
    from rapidocr import RapidOCR

    reader = RapidOCR(params={"Global.log_level": "error"})
    return {picture.name: reader(str(picture)).txts for picture in pictures}


@contextmanager
def in_place_of_onnxruntime(devices):
    """Replace onnxruntime by `nnadapter.ort`; yield the list of opened sessions."""
    opened = []

    class Session(ort.InferenceSession):
        def __init__(self, path, *arguments, **named):
            super().__init__(path, *arguments, **named)
            self.path = path
            opened.append(self)

    original, ort.InferenceSession = ort.InferenceSession, Session
    ort.use(devices)
    ort.install()
    try:
        yield opened
    finally:
        ort.uninstall()
        ort.use([])
        ort.InferenceSession = original
