"""Conversion of a picture to an array, in every layout and type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from PIL import Image

import nnadapter as nna
from tests.models import HEAD, parse

PIXELS = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)


@pytest.fixture
def path(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "p.png")
    return str(tmp_path / "p.png")


@pytest.fixture
def picture_array(call, monkeypatch):
    """Return a function that returns the array that the command line feeds for a picture."""
    fed = []
    run = nna.InferenceSession.run

    def recorded(session, names, feed):
        fed.append(feed)
        return run(session, names, feed)

    monkeypatch.setattr(nna.InferenceSession, "run", recorded)

    def array(path, dtype, shape, exit_code=0):
        kind = f"{dtype.replace('32', '')}[{','.join(map(str, shape))}]"
        onnx.save(parse(f"{HEAD} g ({kind} x) => ({kind} y) {{ y = Identity(x) }}"), "same.onnx")
        result = call(f"run same.onnx -d cpu --input x={path} --repeat 0", exit_code)
        return result.stderr if exit_code else fed[0]["x"]

    return array


def test_picture_fills_a_batch_with_channels_last(picture_array, path):
    found = picture_array(path, "float32", (2, 4, 5, 3))
    np.testing.assert_array_equal(found, np.stack([PIXELS, PIXELS]).astype(np.float32) / 255)
    assert found.flags.c_contiguous and found.dtype == np.float32


def test_picture_for_one_channel_is_gray(picture_array, path):
    found = picture_array(path, "uint8", (1, 1, 4, 5))
    np.testing.assert_array_equal(found[0, 0], np.asarray(Image.open(path).convert("L")))


def test_picture_is_resized_to_the_input(picture_array, path):
    found = picture_array(path, "float16", (1, 3, 9, 7))
    expected = np.asarray(Image.open(path).resize((7, 9), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_allclose(found[0], expected / 255, atol=1e-3)


def test_transparency_is_removed(picture_array, tmp_path):
    Image.new("RGBA", (3, 2), (255, 0, 0, 128)).save(tmp_path / "p.png")
    found = picture_array(tmp_path / "p.png", "float32", (1, 3, 2, 3))
    np.testing.assert_array_equal(found[0, :, 0, 0], [1, 0, 0])


def test_picture_is_rotated_upright(picture_array, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # upright after rotating clockwise by 90 degrees
    Image.fromarray(PIXELS).save(tmp_path / "p.png", exif=exif)
    found = picture_array(tmp_path / "p.png", "uint8", (1, 5, 4, 3))
    np.testing.assert_array_equal(found[0], np.rot90(PIXELS, -1))


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [
        ("int64", (1, 3, 4, 4), "needs floats or uint8"),
        ("float32", (3, 4, 4), "cannot hold a picture"),
        ("float32", (1, 4, 4, 4), "cannot hold a picture"),
        ("float32", (1, 3, 0, 4), "too small for a picture"),
    ],
)
def test_picture_for_another_kind_of_input_is_refused(picture_array, path, dtype, shape, text):
    assert text in picture_array(path, dtype, shape, exit_code=2)
