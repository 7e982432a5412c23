"""Read digits with a network saved by Paddle, through Paddle's predictor API; only one import changes.

    pip install '.[paddle]' && python examples/paddle_ocr.py [-d DEVICE] [--text 20260131] [--in-paddle]

The network is small and untrained: the filters of a convolution are the digits. It returns a probability of each digit,
or of none, for every column, as networks for CTC do. Paddle saves it, in a separate process, for lines of any width.
With `--in-paddle` the same script runs in Paddle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

DIGITS = (
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001001001001", "111101111101111", "111101111001111",
)  # fmt: skip
"""Digits as five rows of three dots."""
BLANK = len(DIGITS)
"""Class of a column without a digit, the blank of CTC."""


def main() -> None:
    """Save the network, draw a line of digits, and read it."""
    chosen = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "--save", folder], check=True, capture_output=True)
        probabilities = predicted(chosen, Path(folder), drawn(chosen.text))
    print(f"read {text_of(probabilities)!r}, was {chosen.text!r}")


def predicted(chosen: argparse.Namespace, folder: Path, picture: np.ndarray) -> np.ndarray:
    """Run the network on an image, as a script of Paddle does."""
    if chosen.in_paddle:
        import paddle.inference as paddle_infer
    else:
        import nnadapter.paddle as paddle_infer

    config = paddle_infer.Config(str(folder / "inference.json"), str(folder / "inference.pdiparams"))
    config.disable_glog_info()
    if not chosen.in_paddle:
        config.enable_custom_device(chosen.device, 0)
    predictor = paddle_infer.create_predictor(config)

    handle = predictor.get_input_handle(predictor.get_input_names()[0])
    handle.reshape(picture.shape)
    handle.copy_from_cpu(picture)
    predictor.run()
    output = predictor.get_output_handle(predictor.get_output_names()[0])
    if not chosen.in_paddle:
        coverage = predictor.report().coverage
        print(f"{chosen.device} runs {coverage.nodes:.1%} of nodes, {coverage.flops:.1%} of FLOPs")
    return output.copy_to_cpu()


def save(folder: Path) -> None:
    """Save the network with Paddle: images [N, 1, 5, W] -> probabilities [N, W - 2, 11]."""
    import paddle

    class Reader(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.match = paddle.nn.Conv2D(1, BLANK + 1, (5, 3))
            filters = np.zeros((BLANK + 1, 1, 5, 3), np.float32)
            filters[:BLANK, 0] = templates() * 2 - 1
            limits = 0.5 - templates().sum((1, 2))  # response of a filter to its digit, minus one half
            self.match.weight.set_value(filters)
            self.match.bias.set_value(np.append(limits, 0.0).astype(np.float32))

        def forward(self, picture: Any) -> Any:
            columns = self.match(picture).squeeze(2).transpose([0, 2, 1])
            return paddle.nn.functional.softmax(columns * 20.0, axis=2)

    network = Reader()
    network.eval()
    spec = paddle.static.InputSpec([None, 1, 5, None], "float32", "picture")
    paddle.jit.save(network, str(folder / "inference"), input_spec=[spec])


def templates() -> np.ndarray:
    """Return the digits as dots [10, 5, 3], 0 or 1."""
    return np.array([[int(dot) for dot in digit] for digit in DIGITS], np.float32).reshape(BLANK, 5, 3)


def drawn(text: str) -> np.ndarray:
    """Return an image [1, 1, 5, W] of digits, one column apart."""
    dots = [np.pad(templates()[int(digit)], ((0, 0), (1, 1))) for digit in text]
    return np.concatenate(dots, axis=1)[None, None]


def text_of(probabilities: np.ndarray) -> str:
    """Return the likeliest class of each column, without blanks and repetitions."""
    classes = probabilities[0].argmax(axis=1)
    letters = [
        letter for letter, previous in zip(classes, [BLANK, *classes], strict=False) if letter not in (previous, BLANK)
    ]
    return "".join(map(str, letters))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the script calls itself with `--save FOLDER`."""
    parser = argparse.ArgumentParser(description="Read digits by a network that Paddle saved.")
    parser.add_argument("-d", "--device", default="fake_npu", help="what `nnadapter devices` lists (default: fake_npu)")
    parser.add_argument("--text", default="20260131", help="digits to draw and to read")
    parser.add_argument("--in-paddle", action="store_true", help="run in Paddle instead, to compare")
    chosen = parser.parse_args()
    if not set(chosen.text) <= set("0123456789") or not chosen.text:
        parser.error(f"--text is {chosen.text!r}, expected digits from 0 to 9")
    return chosen


if __name__ == "__main__":
    if sys.argv[1:2] == ["--save"]:
        save(Path(sys.argv[2]))
    else:
        main()
