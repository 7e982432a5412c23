"""What a person asked to see of the passes."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from nnadapter.drivers.fake_npu.arithmetic import Arithmetic
from nnadapter.drivers.fake_npu.evaluation import evaluate
from nnadapter.ir.operand import DataType
from nnadapter.ir.passes import TOLERANCES, Observer, all_of, check_numbers, dump_to

_HALF = {**TOLERANCES, DataType.FLOAT32: TOLERANCES[DataType.FLOAT16]}
"""With half precision, folded constants are rounded to it."""


def observer(folder: str, check: bool, arithmetic: Arithmetic) -> Observer | None:
    """Return what watches the passes over one model, None if nobody asked.

    Args:
        folder: where the models go, each with its steps in a folder of its own, numbered; empty for nowhere.
        check: run the model before and after each pass, lowered without passes, in full precision, and compare.
        arithmetic: that of the context.
    """
    observers = [dump_to(_next(Path(folder)))] if folder else []
    if check:
        observers.append(check_numbers(evaluate, tolerances=_HALF if arithmetic.half_precision else TOLERANCES))
    return all_of(*observers) if observers else None


def _next(folder: Path) -> Path:
    """A new folder in `folder`, made now, so that nobody else takes it."""
    for number in count(sum(1 for _ in folder.iterdir()) if folder.exists() else 0):
        place = folder / f"model-{number:04}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise AssertionError("there is a next number")
