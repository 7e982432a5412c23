"""Properties of every model: each law takes a random case and raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from types import MappingProxyType

import numpy as np

from nnadapter.drivers import Context, Program, Supported, Unsupported
from nnadapter.drivers.fake_npu import PASSES as DEVICE_PASSES
from nnadapter.drivers.fake_npu import FakeNpuDriver
from nnadapter.ir import ABSENT, Array, DataType, Lifetime, Model, ModelBuilder, digest, submodel, to_text, verify
from nnadapter.ir.passes import PASSES, run_passes
from nnadapter.testing.random_models import Accept, RandomCase, check, outputs_of
from tests.random_models.models import anything, taken
from tests.random_models.running import in_parts, reordered, run

Law = Callable[[RandomCase, Random], None]
"""Arguments: a case, and a source of random choices."""


@cache
def context(precision: str = "float32") -> Context:
    """Return a context shared by many cases, whose caches must not harm other cases."""
    return new_context(precision)


def new_context(precision: str = "float32") -> Context:
    device = FakeNpuDriver().open("")
    defaults = {option.name: option.default for option in device.capability.options}
    return device.create_context({**defaults, "precision": precision})


def every_result(model: Model) -> Model:
    """Return the model with every intermediate value as an output, so that nothing can be fused."""
    made = [operand for operation in model.operations for operand in operation.outputs]
    return submodel(model, range(len(model.operations)), model.inputs, made)


def device_equals_oracle(case: RandomCase, random: Random) -> None:
    """Check that fake_npu takes the model and computes the oracle's results."""
    assert all(isinstance(verdict, Supported) for verdict in context().supported(case.model))
    check(case.model, case.feeds, run(context(), case.model, case.feeds))


def every_operation_equals_oracle(case: RandomCase, random: Random) -> None:
    """Check each operation on the device's own inputs, so that no error hides another."""
    model = every_result(case.model)
    results = run(context(), model, case.feeds)
    values = {index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None}
    values.update(zip(model.inputs, case.feeds, strict=True))
    values.update(zip(model.outputs, results, strict=True))
    for position, operation in enumerate(model.operations):
        read = [operand for operand in dict.fromkeys(operation.inputs) if operand != ABSENT]
        given = [operand for operand in read if model.operands[operand].lifetime is not Lifetime.CONSTANT]
        part = submodel(model, [position], given, operation.outputs)
        check(part, [values[operand] for operand in given], [values[operand] for operand in operation.outputs])


def half_precision_equals_oracle(case: RandomCase, random: Random) -> None:
    """Check that the option precision=float16 has errors no larger than float16's."""
    results = run(context("float16"), case.model, case.feeds)
    check(case.model, case.feeds, results, precision=DataType.FLOAT16)


def verified_and_told(case: RandomCase, random: Random) -> None:
    """Check that the model is valid, and that its rebuilt copy is identical."""
    verify(case.model)
    again = rebuilt(case.model)
    verify(again)
    assert to_text(again) == to_text(case.model) == to_text(case.model)
    assert digest(again) == digest(case.model)


def rebuilt(model: Model) -> Model:
    """Return the model rebuilt operand by operand."""
    builder = ModelBuilder()
    makers = {operation.outputs[0]: operation for operation in model.operations if operation.outputs}
    index = 0
    while index < len(model.operands):
        operand = model.operands[index]
        if operand.value is not None:
            builder.add_constant(operand.name, operand.value, operand.type.quantization)
        elif index in makers:
            made = makers[index]
            names = [model.operands[output].name for output in made.outputs]
            quantized = [model.operands[output].type.quantized for output in made.outputs]
            builder.add_operation(
                made.type, made.inputs, made.attributes, outputs=names, origins=made.origins, quantized=quantized
            )
            index += len(made.outputs) - 1
        else:
            builder.add_input(operand.name, operand.type)
        index += 1
    return builder.finish(model.outputs)


def programs_are_stable(case: RandomCase, random: Random) -> None:
    """Check that serialized programs are deterministic, across contexts too, and that results do not change."""
    shared, own = context(), new_context()
    program = shared.compile(case.model)
    blob = program.serialize()
    assert blob is not None
    assert blob == shared.compile(case.model).serialize() == own.compile(case.model).serialize()
    execution = program.create_execution()
    first = [result.copy() for result in execution.compute(case.feeds)]
    deserialized = own.deserialize(blob)
    assert deserialized.serialize() == blob
    for results in (execution.compute(case.feeds), _run(program, case), _run(deserialized, case)):
        for found, expected in zip(results, first, strict=True):
            np.testing.assert_array_equal(found, expected)


def _run(program: Program, case: RandomCase) -> list[Array]:
    return list(program.create_execution().compute(case.feeds))


def inputs_stay(case: RandomCase, random: Random) -> None:
    """Check that runs accept read-only inputs and leave them unchanged."""
    feeds = [feed.copy() for feed in case.feeds]
    for feed in feeds:
        feed.flags.writeable = False
    run(context(), case.model, feeds)
    for feed, before in zip(feeds, case.feeds, strict=True):
        np.testing.assert_array_equal(feed, before)


def passes_keep_results(case: RandomCase, random: Random) -> None:
    """Check that any combination of passes keeps the model valid, its signature and its results."""
    names = list(PASSES)
    order = random.choice([names, list(DEVICE_PASSES), random.sample(names, len(names)), random.choices(names, k=4)])
    after = run_passes(case.model, order, lambda name, before, model: verify(model))
    assert _border(after) == _border(case.model)
    check(case.model, case.feeds, outputs_of(after, case.feeds))


def _border(model: Model) -> list[tuple[str, str]]:
    operands = [model.operands[index] for index in (*model.inputs, *model.outputs)]
    return [(operand.name, str(operand.type)) for operand in operands]


def parts_equal_the_whole(case: RandomCase, random: Random) -> None:
    """Check that reordered operations, cut into segments, keep the results."""
    model = reordered(random, case.model)
    verify(model)
    check(case.model, case.feeds, in_parts(random, context(), model, case.feeds))


def verdicts_are_reasons(case: RandomCase, random: Random) -> None:
    """Check for one verdict per operation; refusals name the operation, and the remaining model runs."""
    verdicts = context().supported(case.model)
    assert len(verdicts) == len(case.model.operations)
    for operation, verdict in zip(case.model.operations, verdicts, strict=True):
        assert isinstance(verdict, Supported) or operation.type in verdict.detail
        assert isinstance(verdict, Supported | Unsupported)


LAWS: Mapping[Law, Accept] = MappingProxyType(
    {
        device_equals_oracle: taken,
        every_operation_equals_oracle: taken,
        half_precision_equals_oracle: taken,
        programs_are_stable: taken,
        inputs_stay: taken,
        verified_and_told: anything,
        passes_keep_results: anything,
        parts_equal_the_whole: anything,
        verdicts_are_reasons: anything,
    }
)
"""Law -> filter of its models."""
