"""Some cells of the benchmark fault_matrix: faults in sessions."""

from __future__ import annotations

import pytest

from benchmarks.fault_matrix import FATAL, Cell, cells, try_anywhere, try_cell, verdict
from nnadapter.drivers.faulty import Kind, Phase
from tests.c_compiler import acme_among_devices, needs_compiler

GOOD = {"as promised", "not noticed", "not noticed: inputs are changed"}
WAITING = (Kind.HANG, Kind.SLOW)
CELLS = [
    cell
    for cell in cells(("fake_npu",), ("in process",))
    if cell.kind not in (*FATAL, *WAITING)
    and cell.phase is not Phase.OPEN
    and cell.policy != ("allow" if cell.kind is Kind.FAIL else "forbid")
]


def shown(cell):
    return f"{cell.kind.value}-{cell.phase.value}-{cell.policy}"


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.policy != "allow"], ids=shown)
def test_faults_in_process_are_handled(cell):
    seen = try_cell(cell)
    assert verdict(cell, seen) in GOOD, seen


@pytest.mark.slow
def test_crash_names_the_device_and_call():
    cell = Cell(kind=Kind.CRASH, phase=Phase.RUN, device="fake_npu", form="in process", policy="warn")
    seen = try_anywhere(cell)
    assert verdict(cell, seen) == "ends the process, said where"
    assert "device 'faulty:fake_npu', call 'compute" in seen.ended and "'first' and 3 more" in seen.ended


@needs_compiler
@pytest.mark.sweep
def test_all_faults_in_process_are_handled(tmp_path):
    with acme_among_devices(tmp_path):
        for cell in cells(("fake_npu", "acme_c"), ("in process",)):
            if cell.kind not in FATAL and cell.phase is not Phase.OPEN:
                assert verdict(cell, try_cell(cell)) in GOOD, cell


@pytest.mark.slow
def test_crash_of_an_isolated_device_is_a_warning():
    cell = Cell(kind=Kind.CRASH, phase=Phase.RUN, device="fake_npu", form="isolated", policy="warn")
    seen = try_cell(cell)
    assert verdict(cell, seen) == "as promised", seen
