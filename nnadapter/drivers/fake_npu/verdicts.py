"""Verdicts: each operation judged by itself against its row of the table."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from nnadapter.drivers.fake_npu.limits import LARGEST_RANK, NOT_EMPTY, SMALL_RANK, Types
from nnadapter.drivers.fake_npu.operations import OPERATIONS, OperationRow
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.operations.quantization import REALS
from nnadapter.ir.verification import verify
from nnadapter.process.cache import Cache
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

_STRUCTURES = 16
"""Models whose verdicts are remembered; the oldest goes first."""


_NEEDED: Mapping[tuple[str, object], tuple[str, ...]] = {
    ("GELU", "none"): ("ERF",),
    ("GELU", "tanh"): ("TANH",),
    ("HARD_SWISH", None): ("HARD_SIGMOID",),
    ("SWISH", None): ("SIGMOID",),
    ("LAYER_NORMALIZATION", None): ("REDUCE_MEAN", "SQRT"),
    ("ATTENTION", None): ("MAT_MUL", "SOFTMAX"),
}
"""Operation and its form -> what it is made of: who switches that off means to see the device without it."""


class StructureVerdicts:
    """Verdicts on models, remembered for models of the same structure; safe to use from many threads."""

    def __init__(self, switched_off: Collection[str]) -> None:
        self._switched_off = switched_off
        self._supported: Cache[Hashable, tuple[Verdict, ...]] = Cache("fake_npu: verdicts", _STRUCTURES)

    def of(self, model: Model) -> tuple[Verdict, ...]:
        """The verdict on each operation; what was not seen before is checked as a whole first.

        Of a number, `judge` only asks whether it is 0, and names it in refusals. So where all was taken once, all of
        the same structure is taken again, if it holds elements.
        """
        if any(0 in operand.type.dimensions for operand in model.operands):
            return self._judged(model)
        verify(model)
        structure = model.structure
        known = self._supported.get(structure)
        if known is not None:
            return known
        verdicts = self._judged(model)
        return self._supported.put(structure, verdicts) if all(verdicts) else verdicts

    def clear(self) -> None:
        """Forget everything."""
        self._supported.clear()

    def _judged(self, model: Model) -> tuple[Verdict, ...]:
        verify(model)
        return tuple(judge(model, operation, self._switched_off) for operation in model.operations)


def types_needed(operation: Operation) -> tuple[str, ...]:
    """Adapter IR types that must not be switched off for an operation to be taken: its own first."""
    return operation.type, *_NEEDED.get((operation.type, operation.attributes.get("approximate")), ())


def judge(model: Model, operation: Operation, switched_off: Collection[str]) -> Verdict:
    """Return whether the device takes one operation of `model`, and why not."""
    row = OPERATIONS.get(operation.type)
    if row is None:
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"fake_npu has no kernel for {operation.type}")
    for needed in types_needed(operation):
        if needed in switched_off:
            why = "" if needed == operation.type else f", which {operation.type} needs,"
            detail = f"{needed}{why} is switched off on this device by its option switched_off"
            return Unsupported(Reason.SWITCHED_OFF, detail)
    return next(_refusals(model, operation, row), SUPPORTED)


def _refusals(model: Model, operation: Operation, row: OperationRow) -> Iterator[Unsupported]:
    """Everything that is wrong, nearly always nothing; in the order in which a person should hear of it."""
    operands = model.operands
    inputs = [(place, operands[operand]) for place, operand in enumerate(operation.inputs) if operand != ABSENT]
    outputs = [operands[operand] for operand in operation.outputs]
    # what is not quantized is made of the integers, not of the reals that they stand for
    on_integers = operation.type in REALS and outputs[0].type.quantization is None
    for position, model_operand in inputs:
        accepted = row.other_dtypes.get(position, row.dtypes)
        if model_operand.type.quantization is not None and not on_integers:
            accepted |= row.quantized
        if model_operand.type.dtype not in accepted:
            yield _wrong_dtype(operation, model_operand, accepted)
    for model_operand in outputs:
        if model_operand.type.dtype not in row.results:
            yield _wrong_dtype(operation, model_operand, row.results)
    touched = [*(model_operand for _, model_operand in inputs), *outputs]
    yield from _refused_ranks(operation, operands[operation.inputs[0]], touched, row)
    for model_operand in touched:
        if model_operand.type.size == 0:
            detail = f"{operation.type} has {model_operand.type} in {model_operand.name!r}, accepted: {NOT_EMPTY}"
            yield Unsupported(Reason.UNSUPPORTED_TYPE, detail)


def _wrong_dtype(operation: Operation, operand: Operand, accepted: Types) -> Unsupported:
    names = ", ".join(sorted(accepted))
    detail = f"{operation.type} got {operand.type.dtype.value} for {operand.name!r}, accepted: {names}"
    return Unsupported(Reason.UNSUPPORTED_DTYPE, detail)


def _refused_ranks(
    operation: Operation, first: Operand, touched: Sequence[Operand], row: OperationRow
) -> Iterator[Unsupported]:
    smallest, largest = row.ranks
    if not smallest <= len(first.type.dimensions) <= largest:
        detail = f"{operation.type} got {first.type} for {first.name!r}, accepted: rank {smallest} to {largest}"
        yield Unsupported(Reason.UNSUPPORTED_RANK, detail)
    for operand in touched:
        if len(operand.type.dimensions) > LARGEST_RANK:
            detail = f"{operation.type} has {operand.type} in {operand.name!r}, accepted: {SMALL_RANK}"
            yield Unsupported(Reason.UNSUPPORTED_RANK, detail)
