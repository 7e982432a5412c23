"""Laws of torch.compile for random functions: results, changed inputs and gradients are PyTorch's.

`pytest -m fuzz tests/torch -k random` tries many. NNADAPTER_FUZZ_EXAMPLES sets their number, NNADAPTER_FUZZ_SEED the
first seed, NNADAPTER_FUZZ_DEVICE the device.
"""

from __future__ import annotations

import os

import pytest
import torch

import nnadapter as nna
from tests.torch.random_programs import make

pytestmark = pytest.mark.filterwarnings("ignore")  # random lines make PyTorch warn

TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float64: 1e-5, torch.float32: 1e-4}
ROWS = (4, 4, 5, 7)
"""Rows per call, in order."""


def called(function, made, call):
    """Return a call's error, or its results, changed inputs and gradients."""
    inputs = made.inputs(ROWS[call], call)
    leaves = [each for each in inputs if each.is_leaf and each.requires_grad]
    try:
        results = function(*inputs)
        smooth = [result for result in results if result.requires_grad]
        gradients = list(torch.autograd.grad(weighed(smooth), leaves, allow_unused=True)) if smooth and leaves else []
    except Exception as error:  # noqa: BLE001  errors are compared with PyTorch's
        return error, []
    return None, [*results, *inputs, *gradients]


def weighed(results):
    parts = [result * torch.arange(result.numel()).reshape(result.shape).cos().to(result.dtype) for result in results]
    return torch.stack([part.sum().double() for part in parts]).sum()


def differences(made, device):
    """Describe differences from PyTorch, except the ones that AOTAutograd alone causes."""
    options = {"devices": [device], "fallback": "allow"}
    result = list(differing(made, backend=nna.torch.nnadapter, options=options))
    known = set(differing(made, backend="aot_eager")) if result else set()
    return [each for each in result if each not in known]


def differing(made, **compiled):
    torch._dynamo.reset()
    plain, run = made.function(), torch.compile(made.function(), **compiled)
    for call in range(len(ROWS)):
        wrong, expected = called(plain, made, call)
        failed, found = called(run, made, call)
        if wrong is not None:
            continue
        if failed is not None:
            yield f"call {call} raises {type(failed).__name__}: {failed}"
            continue
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from compared(f"call {call}, value {place}", one, other)


def compared(what, found, expected):
    if found is None or expected is None:
        if found is not expected:
            yield f"{what}: {found} for {expected}"
        return
    tolerance = TOLERANCES.get(expected.dtype, 0)
    try:
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        yield f"{what}: {' '.join(str(error).split())}"


def check(seeds, device):
    wrong = {}
    for seed in seeds:
        output = make(seed)
        result = differences(output, device)
        if result:
            wrong[seed] = f"{output.source}{output.kinds} {output.aliases} trains={output.trains}\n" + "\n".join(
                result[:3]
            )
    assert not wrong, f"{len(wrong)} of {len(seeds)} differ:\n\n" + "\n\n".join(
        f"{seed}: {said}" for seed, said in wrong.items()
    )


def test_some_random_programs_equal_pytorch():
    check(range(1), "fake_npu")


@pytest.mark.fuzz
def test_many_random_programs_equal_pytorch():
    start, count = (
        int(os.environ.get(f"NNADAPTER_FUZZ_{name}", default)) for name, default in (("SEED", 0), ("EXAMPLES", 300))
    )
    check(range(start, start + count), os.environ.get("NNADAPTER_FUZZ_DEVICE", "fake_npu"))
