"""A picture as an input: resized, RGB or gray, from 0 to 1, in the input's own layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.process.extras import require_extra

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB"}
"""Channels -> Pillow's name of the color mode."""


def picture_array(path: str, name: str, dtype: str | None, shape: Sequence[int]) -> Array:
    """Return the picture at `path` as an array of `dtype` and `shape`.

    1. It is turned upright (Exif) and made RGB for 3 channels, gray for 1.
    2. It is resized, bilinearly and without regard to its proportions, to the input's height and width.
    3. It is scaled from 0..255 to 0..1, unless the input is uint8, which takes 0..255 as it is.
    4. It is laid out as [N, C, H, W] or [N, H, W, C], whichever `shape` is, and repeated over N.

    Raises:
        InvalidInputError: the input is no picture, or the file cannot be read.
        MissingExtraError: Pillow is not installed.
    """
    if dtype not in ("float32", "float16", "float64", "uint8"):
        raise InvalidInputError(
            f"input {name!r} is {dtype}, a picture needs floats or uint8; give a .npy file", name=name
        )
    channels, height, width, channels_last = _layout(name, shape)
    pixels = _pixels(path, name, _MODES[channels], (width, height)).reshape(height, width, channels)
    scaled = pixels if dtype == "uint8" else (pixels.astype(np.float32) / 255).astype(dtype)
    laid_out = scaled if channels_last else scaled.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(laid_out, tuple(shape)))


def _layout(name: str, shape: Sequence[int]) -> tuple[int, int, int, bool]:
    """Channels, height, width, and whether channels come last."""
    if len(shape) == 4 and shape[1] in _MODES:
        return shape[1], shape[2], shape[3], False
    if len(shape) == 4 and shape[3] in _MODES:
        return shape[3], shape[1], shape[2], True
    raise InvalidInputError(
        f"input {name!r} of shape {list(shape)} takes no picture: expected [N, C, H, W] or [N, H, W, C] with 1 or 3 "
        "channels; give a .npy file, or the shape with --shape",
        name=name,
    )


def _pixels(path: str, name: str, mode: str, size: tuple[int, int]) -> Array:
    require_extra("demo", f"input {name!r}, a picture,")
    from PIL import Image, ImageOps

    if not all(size):
        raise InvalidInputError(f"input {name!r} is {size[0]} by {size[1]} pixels: nothing to resize to", name=name)
    try:
        with Image.open(path) as picture:
            upright = ImageOps.exif_transpose(picture).convert(mode)
            return np.asarray(upright.resize(size, Image.Resampling.BILINEAR))
    except FileNotFoundError as error:
        raise InvalidInputError(f"file {path!r} of input {name!r} does not exist; check the path", name=name) from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidInputError(
            f"file {path!r} of input {name!r} cannot be read as a picture: {error}", name=name
        ) from error
