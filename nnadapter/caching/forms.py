"""The canonical form of what drivers take: adapter IR, or ONNX."""

from __future__ import annotations

from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.canonical import Canonical
from nnadapter.ir.model import Model


def form_of(model: SegmentModel) -> Canonical:
    """Return what of a model decides what is compiled of it.

    Raises:
        NotCanonicalError: it holds something of which that is not known.
    """
    if isinstance(model, Model):
        from nnadapter.ir.canonical import canonical as of_ir

        return of_ir(model)
    from nnadapter.onnx.canonical import canonical as of_onnx

    return of_onnx(model)
