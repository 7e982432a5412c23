"""Device memory that lives as long as its owner on the host."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Memory
from nnadapter.drivers.fake_npu import FakeNpuMemory
from nnadapter.drivers.tensor_copies import TENSORS, OwnerBoundMemory
from nnadapter.errors import DriverWarning
from tests.models import HEAD, parse


class Owner:
    pass


class Bytes(Memory):
    """Memory that may fail to be freed."""

    def __init__(self, failure=None):
        self.failure, self.freed = failure, 0

    def copy_in(self, array):
        pass

    def copy_out(self, array):
        pass

    def free(self):
        self.freed += 1
        if self.failure is not None:
            raise self.failure


def test_memory_is_freed_when_its_owner_is_gone():
    bound_memory, owner, memory = OwnerBoundMemory(), Owner(), Bytes()
    bound_memory.add("a", owner, memory)
    bound_memory.free_orphans()
    assert not memory.freed
    del owner
    bound_memory.free_orphans()
    assert memory.freed == 1 and bound_memory.find("a", None) is None


def test_failing_free_is_reported_once():
    bound_memory, owners, memories = OwnerBoundMemory(), [Owner(), Owner()], [Bytes(RuntimeError("lost")), Bytes()]
    for number, (owner, memory) in enumerate(zip(owners, memories, strict=True)):
        bound_memory.add(number, owner, memory)
    owners.clear()
    del owner
    with pytest.warns(DriverWarning, match=r"Bytes\.free raised RuntimeError: lost; report it to the vendor"):
        bound_memory.free_orphans()
    bound_memory.free_orphans()
    assert [memory.freed for memory in memories] == [1, 1]
    assert len(bound_memory) == 0


def test_memory_cached_first_by_another_thread_is_freed():
    bound_memory, owner, first = OwnerBoundMemory(), Owner(), Bytes()
    assert bound_memory.add("a", owner, first) is first
    with pytest.warns(DriverWarning, match="lost"):
        assert bound_memory.add("a", owner, Bytes(RuntimeError("lost"))) is first


@pytest.mark.slow
def test_other_runs_continue_after_a_failing_free(monkeypatch):
    """A failing free must not disturb another session or another device."""
    x = np.asarray([-1, 2, 3], np.float32)
    model = parse(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")
    with (
        nna.InferenceSession(model, devices="fake_npu") as session,
        nna.InferenceSession(model, devices="null") as other,
    ):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "fake_npu")
        session.run_with_iobinding(binding)
        with monkeypatch.context() as patched:
            patched.setattr(FakeNpuMemory, "free", lambda memory: 1 / 0)
            del binding
            with pytest.warns(DriverWarning, match="ZeroDivisionError"):
                other.run(None, {"x": x})
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    assert not TENSORS._dead_owners
