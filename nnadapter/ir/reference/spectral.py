"""The meanings of Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, tensor

_PARTS = "The last axis has size 1 for real numbers, 2 for complex ones (real part, imaginary part)."

MEANINGS: Mapping[str, OperationDoc] = {
    "DFT": OperationDoc(
        summary="The discrete Fourier transform along an axis, or its inverse.",
        formula="forwards: output[k] = sum over n of x[n] * exp(-2i * pi * k * n / length)\n"
        "inverse:  output[k] = 1 / length * sum over n of x[n] * exp(2i * pi * k * n / length)\n"
        "x: the input along the axis, cut off or filled up with zeros to `length`",
        inputs={"input": f"[…, 1] or […, 2]. {_PARTS}"},
        attributes={
            "axis": "The axis that is transformed, from 0 to rank - 2: not the last one.",
            "length": "How many elements are transformed, 1 or more.",
            "inverse": "True: back, divided by the length.",
            "onesided": "Forwards: real numbers in, and of the result only the first floor(length / 2) + 1 elements."
            " Inverse: such elements in, real numbers out.",
        },
        outputs={
            "output": "The data type of `input`. The axis has size `length`, or floor(length / 2) + 1 if one-sided and"
            " forwards. The last axis has size 2, or 1 if one-sided and inverse."
        },
        example=Example((tensor([[[1.0], [2.0], [3.0], [4.0]]]),), {"axis": 1, "length": 4, "onesided": True}),
        traps=(
            "`length` is always given; ONNX's optional input has been resolved.",
            "One-sided inverse: elements behind floor(length / 2) are the conjugates of those before; the imaginary"
            " parts of element 0, and of the middle one of an even length, count for nothing.",
            "A one-sided inverse reads at most `length` elements, not floor(length / 2) + 1 exactly: what is missing"
            " is 0.",
        ),
        flops="5 * elements * ceil(log2(length)), the logarithm 1 at least, for `length` elements along the axis",
    ),
    "STFT": OperationDoc(
        summary="Fourier transforms of overlapping frames of signals.",
        formula="output[b, f, k] = sum over n of input[b, f * frame_step + n] * window[n] * exp(-2i * pi * k * n /"
        " frame_length)\n"
        "frames = floor((length of signal - frame_length) / frame_step) + 1",
        inputs={
            "input": f"Signals [B, length, 1] or [B, length, 2]. {_PARTS}",
            "window": "[frame_length]; none: ones.",
        },
        attributes={
            "frame_step": "Distance of two frames, 1 or more.",
            "frame_length": "Elements of a frame; at most those of the signal.",
            "onesided": "True: real signals in, and the first floor(frame_length / 2) + 1 elements of each transform.",
        },
        outputs={"output": "[B, frames, frame_length, 2], or [B, frames, floor(frame_length / 2) + 1, 2]."},
        example=Example(
            (tensor([[[1.0], [2.0], [3.0], [4.0]]]),), {"frame_step": 2, "frame_length": 2, "onesided": True}
        ),
        traps=(
            "onesided is false unless given; ONNX's is true.",
            "A last frame that does not fit whole is left out. Nothing is padded or centered.",
        ),
        flops="as DFT for every frame, and 1 for each element of a frame with a window",
    ),
}
"""By operation."""
