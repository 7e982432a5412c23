"""Choice of device, precision and quantization per unit under an accuracy budget."""

from __future__ import annotations
