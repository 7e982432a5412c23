"""Pictures as input arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.process.packages import require_extra

Array = np.ndarray[Any, np.dtype[Any]]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB"}


def picture_array(path: str, name: str, dtype: str | None, shape: Sequence[int]) -> Array:
    """Read a picture as an array of `dtype` and `shape`. Raises InvalidInputError or MissingExtraError.

    `nnadapter run --help` describes the conversion.
    """
    if dtype not in ("float32", "float16", "float64", "uint8"):
        raise InvalidInputError(
            f"input {name!r} is {dtype}, but a picture needs floats or uint8; give a .npy file", name=name
        )
    channels, height, width, channels_last = _layout(name, shape)
    pixels = _pixels(path, name, _MODES[channels], (width, height)).reshape(height, width, channels)
    scaled = pixels if dtype == "uint8" else (pixels.astype(np.float32) / 255).astype(dtype)
    laid_out = scaled if channels_last else scaled.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(laid_out, tuple(shape)))


def _layout(name: str, shape: Sequence[int]) -> tuple[int, int, int, bool]:
    if len(shape) == 4 and shape[1] in _MODES:
        return shape[1], shape[2], shape[3], False
    if len(shape) == 4 and shape[3] in _MODES:
        return shape[3], shape[1], shape[2], True
    raise InvalidInputError(
        (
            f"input {name!r} of shape {list(shape)} cannot hold a picture: expected [N, C, H, W] or [N, "
            "H, W, C] with 1 or 3 channels; give a .npy file, or the shape with --shape"
        ),
        name=name,
    )


def _pixels(path: str, name: str, mode: str, size: tuple[int, int]) -> Array:
    require_extra("demo", f"input {name!r}, a picture,")
    from PIL import Image, ImageOps

    if not all(size):
        raise InvalidInputError(
            f"input {name!r} is {size[0]} by {size[1]} pixels, too small for a picture; give a larger --shape",
            name=name,
        )
    try:
        with Image.open(path) as picture:
            upright = ImageOps.exif_transpose(picture).convert(mode)
            return np.asarray(upright.resize(size, Image.Resampling.BILINEAR))
    except FileNotFoundError as error:
        raise InvalidInputError(f"file {path!r} of input {name!r} does not exist; check the path", name=name) from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidInputError(
            f"file {path!r} of input {name!r} cannot be read as a picture: {error}; give another file", name=name
        ) from error
