"""Total memory of several plans."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.engine import Holding, PlanMemory

HOLDINGS = st.builds(Holding, st.integers(0, 50), st.dictionaries(st.sampled_from("abc"), st.just(30)))


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | HOLDINGS), max_size=20))
def test_incremental_total_equals_recomputed_total(events):
    memory, kept = PlanMemory(), {}
    for plan, holding in events:
        if holding is None:
            memory.forget(plan)
            kept.pop(plan, None)
        else:
            memory.update(plan, holding)
            kept[plan] = holding
        own, shared = sum(each.own_bytes for each in kept.values()), {k for each in kept.values() for k in each[1]}
        assert memory.total_bytes == own + 30 * len(shared)
        for last, each in kept.items():
            assert memory.freed_bytes(last) == memory.total_bytes - 30 * len(each.shared_bytes)


def test_shared_memory_counts_once_with_its_last_size():
    memory = PlanMemory()
    memory.update("one", Holding(1, {"a": 10, "b": 20}))
    memory.update("two", Holding(2, {"b": 25}))
    assert memory.total_bytes == 38
    memory.forget("two")
    assert memory.total_bytes == 36


@pytest.mark.parametrize("is_asked", [True, False])
def test_interrupted_update_leaves_a_consistent_total(is_asked):
    """An interrupt at any step leaves the old count or the new one, whether or not it is read in between."""
    for event, before, after in (
        (lambda memory: memory.update("one", Holding(5, {"a": 10, "c": 7})), (33, 10), (44, 17)),
        (lambda memory: memory.forget("two"), (33, 10), (11, 10)),
    ):
        for steps in range(1, 1000):
            memory, left = PlanMemory(), steps
            memory.update("one", Holding(1, {"a": 10}))
            memory.update("two", Holding(2, {"a": 10, "b": 20}))

            def trace(frame, kind, _):
                nonlocal left
                frame.f_trace_opcodes = True
                left -= kind == "opcode"
                if not left:
                    raise KeyboardInterrupt
                return trace

            tracing = sys.gettrace()
            try:
                sys._getframe().f_trace_opcodes = True  # Python 3.12 needs this before settrace
                sys.settrace(trace)
                event(memory)
            except KeyboardInterrupt:
                sys.settrace(tracing)
                if is_asked:
                    held = memory.total_bytes, memory.total_bytes - memory.freed_bytes("one")
                    assert held in (before, after), steps
                memory.forget("one"), memory.forget("two")
                assert memory.total_bytes == 0
            else:
                break
            finally:
                sys.settrace(tracing)
        assert steps > 20 and memory.total_bytes == after[0]
