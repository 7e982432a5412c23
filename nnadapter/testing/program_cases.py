"""Conformance cases for contexts, executions, threads, serialized programs and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from random import Random

import numpy as np

from nnadapter.drivers import Compatibility, Execution, ModelForm, SegmentModel, Threading
from nnadapter.drivers.isolation.channels import StreamResults
from nnadapter.errors import DeviceLostError, IncompatibleProgramError, NNAdapterError
from nnadapter.ir import DataType, Model, ModelBuilder, OperandType
from nnadapter.testing.ir_cases import of_many
from nnadapter.testing.onnx_cases import of_many_nodes, of_one_node, one_input
from nnadapter.testing.random_models.maker import RandomCase
from nnadapter.testing.subjects import (
    Bench,
    Case,
    CaseFailure,
    Evidence,
    FailedOutcome,
    Outcome,
    OutcomeKind,
    PassedOutcome,
    SkippedOutcome,
    Subject,
    blamed,
    closing,
    of_ir,
)

_WANTED, _TRIES = 3, 12
_PLAIN = ("RELU", "ABS", "NEG", "TANH", "SIGMOID", "ASSIGN", "EXP", "FLOOR", "ADD", "MUL", "MAX", "MAT_MUL")
_STEADY, _LARGE = (256, 256), (1 << 20, 1 << 20)


def samples(bench: Bench) -> list[Subject]:
    """Return up to three models that the device runs correctly; one model's results depend on constants if possible."""
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
    if subject.rebind is None:
        return False
    try:
        return subject.judge(subject.rebind().expected) is not None
    except (ArithmeticError, LookupError, ValueError):  # undefined for these constants
        return False


def steady(bench: Bench) -> Subject | None:
    """Return a subject that runs one operation on 256 KiB, to find memory leaks; None if there is none."""
    generator = np.random.default_rng(bench.settings.seed)
    if bench.capability.form is ModelForm.ONNX:
        subject = of_one_node(bench, _STEADY)
    else:
        model = _plain(bench, _STEADY)
        feeds = [generator.uniform(-1, 1, _STEADY).astype(np.float32) for _ in model.inputs] if model else []
        subject = None if model is None else of_ir(RandomCase(model, tuple(feeds)), bench.settings.precision)
    return subject if subject is not None and _works(bench, subject) else None


def too_large(bench: Bench) -> SegmentModel | None:
    """Return a model of one supported operation on a tensor of 4 TiB."""
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


_AT_ONCE = 4
_FLIPS = 24
_FITTING = (Compatibility.IDENTICAL, Compatibility.COMPATIBLE)
_UNRELATED = b"\x00\xff" * 64
_WARM_UP = 20
_ROOM_BYTES = 2 << 20
_ROOM_PER_ROUND = 8 << 10
"""Bytes by which memory may grow per round, because of fragmentation and bounded counters."""

Act = Callable[[Bench, Subject], Outcome]


def programs(bench: Bench) -> Iterator[Case]:
    """Yield the cases for compiled programs."""
    for name, act in _ACTS.items():
        for number in range(1 if bench.settings.short else 3):
            yield Case(f"programs/{name}/{number}", partial(_with_sample, number=number, act=act))
    yield Case("programs/out-of-memory/0", _out_of_memory)
    yield Case("programs/leaks/0", _leaks)


def _with_sample(bench: Bench, random: Random, number: int, act: Act) -> Outcome:
    subjects = samples(bench)
    return (
        act(bench, subjects[number])
        if number < len(subjects)
        else SkippedOutcome("the device supports no further model")
    )


def _contexts(bench: Bench, subject: Subject) -> Outcome:
    with ExitStack() as stack:
        other = stack.enter_context(closing(bench.new_context()))
        execution = stack.enter_context(bench.started(subject, other))
        third = bench.new_context()
        with bench.started(subject, third) as second:
            bench.run(subject, execution, subject.varied(), second)
        third.close()
        bench.run(subject, execution)
    return PassedOutcome()


def _executions(bench: Bench, subject: Subject) -> Outcome:
    varied = subject.varied()
    with bench.compiled(subject) as program, ExitStack() as stack:
        first, second = (stack.enter_context(bench.execution(subject, program)) for _ in range(2))
        bench.run(subject, first, varied, second, subject, second, varied, first)
    return PassedOutcome()


def _results_stay(bench: Bench, subject: Subject) -> Outcome:
    varied = subject.varied()
    with bench.started(subject) as execution:
        bench.run(subject, execution)
        try:
            bench.run(subject, execution, varied, execution)
        except CaseFailure as broken:
            kind, reason = OutcomeKind.CHANGED_RESULTS, "results differ after the same execution computed again"
            raise CaseFailure(
                FailedOutcome(kind, f"{reason}: {broken.failed.detail}", broken.failed.evidence)
            ) from broken
    return PassedOutcome()


def _at_once(bench: Bench, subject: Subject) -> Outcome:
    threading = bench.capability.threading
    varied = subject.varied()
    with bench.compiled(subject) as program, ExitStack() as stack:
        count = 1 if threading is Threading.REENTRANT else _AT_ONCE
        distinct_executions = [stack.enter_context(bench.execution(subject, program)) for _ in range(count)]
        executions: list[Execution] = distinct_executions * (_AT_ONCE // count)
        pairs = [
            argument
            for number, execution in enumerate(executions)
            for argument in (varied if number % 2 else subject, execution)
        ]
        for _ in range(8):
            bench.run(*pairs, at_once=threading is not Threading.SERIAL)
    return PassedOutcome()


_NOT_SERIALIZABLE = SkippedOutcome("the device's programs cannot be serialized")


def _serialized(bench: Bench, subject: Subject) -> bytes | None:
    with bench.compiled(subject) as program, blamed(OutcomeKind.DOES_NOT_RUN, subject, "serialize raised"):
        return program.serialize()


def _deserialized(bench: Bench, subject: Subject) -> Outcome:
    blob = _serialized(bench, subject)
    if blob is None:
        return _NOT_SERIALIZABLE
    for context in (bench.context, bench.new_context()):
        with blamed(OutcomeKind.DOES_NOT_RUN, subject, "deserialize raised"):
            deserialized = context.deserialize(blob)
        with closing(deserialized), bench.execution(subject, deserialized) as execution:
            bench.run(subject, execution)
    return PassedOutcome()


def _judged(bench: Bench, subject: Subject) -> Outcome:
    blob = _serialized(bench, subject)
    if blob is None:
        return _NOT_SERIALIZABLE
    for context in (bench.context, bench.new_context()):
        with blamed(OutcomeKind.WRONG_ANSWER, subject, "check_blob of a program of this device raised"):
            compatibility = context.check_blob(memoryview(blob))
        if compatibility not in (None, *_FITTING):
            detail = (
                f"check_blob returned {compatibility} for the device's own program, expected same, compatible or None"
            )
            return FailedOutcome(OutcomeKind.WRONG_ANSWER, detail, subject.evidence)
        for description, foreign in (("no bytes", b""), ("unrelated bytes", _UNRELATED)):
            with blamed(OutcomeKind.WRONG_ANSWER, subject, f"check_blob of {description} raised"):
                compatibility = context.check_blob(memoryview(foreign))
            if compatibility in _FITTING:
                detail = f"check_blob returned {compatibility} for {description}, expected recompile, no or None"
                return FailedOutcome(OutcomeKind.ACCEPTS_DAMAGED, detail, subject.evidence)
        for length in range(0, len(blob), max(len(blob) // 16, 1)):
            with blamed(OutcomeKind.WRONG_ANSWER, subject, f"check_blob of the first {length} bytes raised"):
                context.check_blob(memoryview(blob)[:length])
    return PassedOutcome()


def _streams(bench: Bench, subject: Subject) -> Outcome:
    if bench.capability.threading is Threading.SERIAL:
        return SkippedOutcome("the device does one thing at a time")
    varied = subject.varied()
    with bench.compiled(subject) as program, ExitStack() as stack:
        first, second = (stack.enter_context(bench.execution(subject, program)) for _ in range(2))
        with blamed(OutcomeKind.DOES_NOT_RUN, subject, "work of streams raised"):
            stream_results = bench.device.compute_on_streams([(first, subject.feeds)], [(second, varied.feeds)])
    return (
        SkippedOutcome("the device enqueues no such work")
        if stream_results is None
        else _judged_there(subject, varied, stream_results)
    )


def _memory(bench: Bench, subject: Subject) -> Outcome:
    varied = subject.varied()
    with (
        bench.started(subject) as execution,
        blamed(OutcomeKind.DOES_NOT_RUN, subject, "compute_on_device raised"),
    ):
        device_results = bench.device.compute_on_device([(execution, subject.feeds), (execution, varied.feeds)])
    if device_results is None:
        return SkippedOutcome("the device has no memory of its own to compute in")
    return _judged_there(subject, varied, device_results)


def _judged_there(subject: Subject, varied: Subject, device_results: StreamResults) -> Outcome:
    results, broken = device_results
    if broken:
        return FailedOutcome(OutcomeKind.WRONG_ANSWER, broken[0], subject.evidence)
    return subject.judge(results[0]) or varied.judge(results[1]) or PassedOutcome()


def _bound(bench: Bench, subject: Subject) -> Outcome:
    if subject.rebind is None:
        return SkippedOutcome("only programs of adapter IR models have constants to replace")
    try:
        other = subject.rebind()
    except (ArithmeticError, LookupError, ValueError):  # undefined for these constants
        return SkippedOutcome("the model has no other constants")
    if bench.refusal(other):
        return SkippedOutcome("the device does not support the model with other constants")
    with ExitStack() as stack:
        with bench.compiled(subject) as program:
            with blamed(OutcomeKind.DOES_NOT_COMPILE, other, "bind raised"):
                bound = bench.context.clone_with_constants(program, other.model)
            if bound is None:
                return SkippedOutcome("the device compiles every model separately")
            stack.enter_context(closing(bound))
            second = stack.enter_context(bench.execution(other, bound))
            with bench.execution(subject, program) as first:
                bench.run(other, second, subject, first)
        bench.run(other, second)
    return PassedOutcome()


def _damaged(bench: Bench, subject: Subject) -> Outcome:
    blob = _serialized(bench, subject)
    if blob is None:
        return _NOT_SERIALIZABLE
    for damage, spoilt in _spoilt(blob):
        failed = _refuses(bench, subject, damage, spoilt)
        if failed is not None:
            return failed
    return PassedOutcome()


def _spoilt(blob: bytes) -> Iterator[tuple[str, bytes]]:
    for length in sorted({0, 1, 8, len(blob) // 2, len(blob) - 1}):
        yield f"cut off after {length} of {len(blob)} bytes", blob[:length]
    yield "unrelated bytes", _UNRELATED
    random = Random(len(blob))
    for place in sorted(random.randrange(len(blob)) for _ in range(_FLIPS)):
        yield f"byte {place} of {len(blob)} changed", blob[:place] + bytes([blob[place] ^ 0x55]) + blob[place + 1 :]


def _refuses(bench: Bench, subject: Subject, damage: str, blob: bytes) -> FailedOutcome | None:
    try:
        deserialized = bench.context.deserialize(blob)
    except IncompatibleProgramError:
        return None
    except DeviceLostError:
        raise
    except NNAdapterError as error:
        detail = f"deserialize of a program ({damage}) raised {type(error).__name__}: {error}, expected an "
        return FailedOutcome(OutcomeKind.ACCEPTS_DAMAGED, f"{detail}IncompatibleProgramError", subject.evidence)
    try:
        with closing(deserialized), bench.execution(subject, deserialized) as execution:
            bench.run(subject, execution)
    except CaseFailure as broken:
        detail = f"deserialize accepted a program ({damage}) that then fails, expected an IncompatibleProgramError: "
        return FailedOutcome(OutcomeKind.ACCEPTS_DAMAGED, detail + broken.failed.detail, subject.evidence)
    return None


def _out_of_memory(bench: Bench, random: Random) -> Outcome:
    model = too_large(bench)
    if model is None:
        return SkippedOutcome("the device supports no operation that can be made too large")
    evidence = Evidence(model=model)
    try:
        admitted = bool(bench.context.admit(model).verdict)
        if admitted:
            program = bench.context.compile(model)
            with closing(program), closing(program.create_execution()):
                pass
    except DeviceLostError as error:
        return FailedOutcome(OutcomeKind.CRASHED, f"a model larger than any memory: {error}", evidence)
    except NNAdapterError:
        admitted = False
    if admitted and bench.capability.memory_bytes is not None:
        room = bench.capability.memory_bytes
        return FailedOutcome(
            OutcomeKind.WRONG_ANSWER, f"it admitted a model larger than its memory of {room} bytes", evidence
        )
    subjects = samples(bench)
    return bench.examine(subjects[0]) if subjects else PassedOutcome()


def _leaks(bench: Bench, random: Random) -> Outcome:
    subject = steady(bench)
    if subject is None:
        return SkippedOutcome("the device supports no model to repeat")
    rounds = 60 if bench.settings.short else 150
    for _ in range(_WARM_UP):
        _round(bench, subject)
    start_footprint = bench.device.footprint()
    for _ in range(rounds):
        _round(bench, subject)
    end_footprint = bench.device.footprint()
    grown, handles = (
        end_footprint.resident_bytes - start_footprint.resident_bytes,
        end_footprint.handles - start_footprint.handles,
    )
    scenario = f"{rounds} times a context, a program, an execution and a computation, all closed"
    if handles >= rounds // 4:
        return FailedOutcome(OutcomeKind.LEAKS, f"{handles} more open handles after {scenario}", subject.evidence)
    if grown > _ROOM_BYTES + rounds * _ROOM_PER_ROUND:
        return FailedOutcome(OutcomeKind.LEAKS, f"{grown} bytes more after {scenario}", subject.evidence)
    return PassedOutcome()


def _round(bench: Bench, subject: Subject) -> None:
    context = bench.new_context()
    with closing(context), bench.started(subject, context) as execution:
        bench.run(subject, execution)


_ACTS = {
    "contexts": _contexts,
    "executions": _executions,
    "results-stay": _results_stay,
    "at-once": _at_once,
    "deserialized": _deserialized,
    "damaged": _damaged,
    "judged": _judged,
    "memory": _memory,
    "streams": _streams,
    "bound": _bound,
}
