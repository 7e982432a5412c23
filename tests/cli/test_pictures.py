"""A picture as an array, in every layout and type."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nnadapter.cli.inputs import picture_array
from nnadapter.errors import InvalidInputError

PIXELS = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)


@pytest.fixture
def path(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "p.png")
    return str(tmp_path / "p.png")


def test_channels_last_and_batch(path):
    found = picture_array(path, "x", "float32", (2, 4, 5, 3))
    np.testing.assert_array_equal(found, np.stack([PIXELS, PIXELS]).astype(np.float32) / 255)
    assert found.flags.c_contiguous and found.dtype == np.float32


def test_one_channel_is_gray(path):
    found = picture_array(path, "x", "uint8", (1, 1, 4, 5))
    np.testing.assert_array_equal(found[0, 0], np.asarray(Image.open(path).convert("L")))


def test_sizes_are_the_inputs(path):
    found = picture_array(path, "x", "float16", (1, 3, 9, 7))
    expected = np.asarray(Image.open(path).resize((7, 9), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_allclose(found[0], expected / 255, atol=1e-3)


def test_transparency_goes(tmp_path):
    Image.new("RGBA", (3, 2), (255, 0, 0, 128)).save(tmp_path / "p.png")
    found = picture_array(str(tmp_path / "p.png"), "x", "float32", (1, 3, 2, 3))
    np.testing.assert_array_equal(found[0, :, 0, 0], [1, 0, 0])


def test_pictures_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees to see it upright
    Image.fromarray(PIXELS).save(tmp_path / "p.png", exif=exif)
    found = picture_array(str(tmp_path / "p.png"), "x", "uint8", (1, 5, 4, 3))
    np.testing.assert_array_equal(found[0], np.rot90(PIXELS, -1))


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [
        ("int64", (1, 3, 4, 4), "needs floats or uint8"),
        ("float32", (3, 4, 4), "takes no picture"),
        ("float32", (1, 4, 4, 4), "takes no picture"),
        ("float32", (1, 3, 0, 4), "nothing to resize"),
    ],
)
def test_inputs_that_take_no_picture(path, dtype, shape, text):
    with pytest.raises(InvalidInputError, match=text):
        picture_array(path, "x", dtype, shape)
