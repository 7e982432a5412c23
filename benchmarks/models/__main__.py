"""Command line: `python -m benchmarks.models FOLDER [NAME...]` writes networks with seeded weights as ONNX files."""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from benchmarks.models.encoders import bert
from benchmarks.models.quantized_models import NETWORKS

_MAKERS = {**NETWORKS, "bert": bert}


def main() -> None:
    """Write the named networks, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_MAKERS)}; all by default")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in _MAKERS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}, only {', '.join(_MAKERS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or _MAKERS:
        onnx.save(_MAKERS[name](), options.folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
