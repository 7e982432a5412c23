"""A few models that the device under test takes and computes, for cases about something else."""

from __future__ import annotations

from random import Random

import numpy as np

from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.testing.bench import Bench, CaseFailure
from nnadapter.testing.ir_models import of_many
from nnadapter.testing.onnx_models import of_many_nodes, of_one_node, one_input
from nnadapter.testing.outcomes import PassedOutcome
from nnadapter.testing.random_models.maker import RandomCase
from nnadapter.testing.subjects import Subject, of_ir

_WANTED, _TRIES = 3, 12
_PLAIN = ("RELU", "ABS", "NEG", "TANH", "SIGMOID", "ASSIGN", "EXP", "FLOOR", "ADD", "MUL", "MAX", "MAT_MUL")
"""Operations that take inputs of one type and any size; nearly every device has one of them."""
_STEADY, _LARGE = (256, 256), (1 << 20, 1 << 20)


def samples(bench: Bench) -> list[Subject]:
    """Up to three models that the device takes and computes as it should, always the same.

    What the last of them computes hangs on its constants, if that of no other does and such a model is found.
    """
    if "samples" not in bench.notes:
        bench.notes["samples"] = _chosen(bench)
    return list(bench.notes["samples"])


def _chosen(bench: Bench) -> list[Subject]:
    subjects: list[Subject] = []
    told_by_constants = False
    for number in range(_TRIES):
        subject = _random(bench, Random(f"{bench.settings.seed}/sample {number}"))
        if subject is None or not _works(bench, subject):
            continue
        hangs = not told_by_constants and _hangs_on_constants(subject)
        told_by_constants = told_by_constants or hangs
        if len(subjects) < _WANTED:
            subjects.append(subject)
        elif hangs:
            subjects[-1] = subject
        if len(subjects) == _WANTED and (told_by_constants or subject.rebind is None):
            break
    return subjects


def _hangs_on_constants(subject: Subject) -> bool:
    """Whether other constants give other results."""
    if subject.rebind is None:
        return False
    try:
        return subject.judge(subject.rebind().expected) is not None
    except (ArithmeticError, LookupError, ValueError):  # an operation is not defined for these
        return False


def steady(bench: Bench) -> Subject | None:
    """One operation on a quarter of a MiB, for what is repeated."""
    generator = np.random.default_rng(bench.settings.seed)
    if bench.capability.form is ModelForm.ONNX:
        subject = of_one_node(bench, _STEADY)
    else:
        model = _plain(bench, _STEADY)
        feeds = [generator.uniform(-1, 1, _STEADY).astype(np.float32) for _ in model.inputs] if model else []
        subject = None if model is None else of_ir(RandomCase(model, tuple(feeds)), bench.settings.precision)
    return subject if subject is not None and _works(bench, subject) else None


def too_large(bench: Bench) -> SegmentModel | None:
    """One operation on 4 TiB, that a device takes as far as single operations are concerned."""
    return one_input(bench, _LARGE) if bench.capability.form is ModelForm.ONNX else _plain(bench, _LARGE)


def _plain(bench: Bench, dimensions: tuple[int, ...]) -> Model | None:
    for type_ in _PLAIN:
        builder = ModelBuilder()
        count = 2 if type_ in ("ADD", "MUL", "MAX", "MAT_MUL") else 1
        inputs = [
            builder.add_input(f"x{position}", OperandType(DataType.FLOAT32, dimensions)) for position in range(count)
        ]
        model = builder.finish(builder.add_operation(type_, inputs, {}))
        if bench.takes(model):
            return model
    return None


def _random(bench: Bench, random: Random) -> Subject | None:
    if bench.capability.form is ModelForm.ONNX:
        return of_many_nodes(bench, random, 5)
    case = of_many(bench, random, 5)
    return None if case is None else of_ir(case, bench.settings.precision)


def _works(bench: Bench, subject: Subject) -> bool:
    try:
        return isinstance(bench.examine(subject), PassedOutcome)
    except CaseFailure:
        return False
