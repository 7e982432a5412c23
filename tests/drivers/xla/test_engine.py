"""JAX with changed settings, and without the package."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import jax
import numpy as np
import pytest

from nnadapter.drivers.registry import open_device
from tests.drivers.xla.harness import DEVICE, computed, context, model_of

USER_SETTINGS = {
    "debug_infs": True,
    "debug_nans": True,
    "disable_jit": True,
    "numpy_dtype_promotion": "strict",
    "numpy_rank_promotion": "raise",
    "transfer_guard": "disallow",
}
"""Settings for debugging that a user may have changed."""


def test_jax_settings_are_ignored_and_unchanged():
    model = model_of("DIV", [("float32", (2, 3)), ("float32", (3,))])
    x, zeros = np.array([[0, 1, 2], [3, 4, 5]], np.float32), np.zeros(3, np.float32)
    with ExitStack() as stack:
        for name, value in USER_SETTINGS.items():
            stack.enter_context(getattr(jax, name)(value))
        (result,) = computed(model, x, zeros)
        program = context().compile(model)
        deserialized = context().deserialize(program.serialize())
        memory = open_device(DEVICE).allocate(x.nbytes)
        memory.copy_in(x)
        memory.copy_out(out := np.empty_like(x))
        assert jax.config.jax_debug_nans and jax.config.jax_numpy_rank_promotion == "raise"
        np.testing.assert_array_equal(deserialized.create_execution().compute([x, zeros])[0], result)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result, x / zeros)
    np.testing.assert_array_equal(out, x)


def in_a_process(preparing):
    """Return the XLA devices that a process lists after some lines of code."""
    script = "import nnadapter as nna\nprint([(x.name, x.reason) for x in nna.devices() if x.name.startswith('xla')])"
    run = subprocess.run([sys.executable, "-c", f"{preparing}\n{script}"], capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.parametrize(
    ("module", "reason"), [("jax", "needs the package jax, which is not"), ("jaxlib", "the package jax does not load")]
)
def test_rows_without_the_package_state_the_reason(module, reason):
    output = in_a_process(f"import sys; sys.modules[{module!r}] = None")
    assert output.count(reason) == 3 and "'xla:cpu'" in output


@pytest.mark.sweep
def test_missing_platforms():
    assert "JAX finds no cpu" in in_a_process("import os; os.environ['JAX_PLATFORMS'] = 'cuda'")
