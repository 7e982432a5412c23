"""What each pass made of a model, as text in a folder."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

from nnadapter.ir.model import Model
from nnadapter.ir.passes.run import Observer
from nnadapter.ir.text import to_named_text


def dump_to(folder: str | os.PathLike[str]) -> Observer:
    """Return an observer for one call of `run_passes` that writes every model it sees into `folder`.

    `00-given.txt` is the model before the first pass, `NN-name.txt` what came out of each. Operands are called by
    name, so `diff` shows what a pass did. A model with traced numbers is written as it is for its own sizes, on which
    its trace then depends: lower without tracing where this is used.

    Args:
        folder: made if it is not there; files of the same name are overwritten.
    """
    place = Path(folder)
    numbers = count()
    initial_models: list[Model] = []

    def write(name: str, model: Model) -> None:
        place.mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^\w.-]", "_", name)
        (place / f"{next(numbers):02}-{safe}.txt").write_text(to_named_text(model), encoding="utf-8")

    def observe(name: str, original: Model, result: Model) -> None:
        if not initial_models:
            initial_models.append(original)
            write("given", original)
        write(name, result)

    return observe
