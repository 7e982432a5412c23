"""Every fault x phase x form x device x policy: what a session does, in a table.

    python benchmarks/faults.py                                  # all that there is; a quarter of an hour
    python benchmarks/faults.py --form "in process" --device fake_npu --kind fail --verbose

Devices are around fake_npu, a driver in Python, and acme_c, one in C. Under `warn` results are right and one warning
says so; under `allow` nothing is said; under `forbid` an error of the tree has the device and the phase in its fields.
What ends the process is tried in a child. A cell counts as `not noticed` where nobody can notice who does not compute
the same again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.fault_matrix import FORMS, POLICIES, Cell, Seen, cells, to_plain, try_cell, verdict
from benchmarks.timing import table
from nnadapter.drivers.faulty import Kind, Phase
from tests.c_compiler import acme_among_devices

DEVICES = ("fake_npu", "acme_c")
_GOOD = (
    "as promised",
    "not noticed",
    "not noticed: inputs are changed",
    "ends the process, said where",
    "ends the process",
)


def main() -> None:
    """Try the cells that are asked for, and print what came of them."""
    arguments = _arguments()
    if arguments.cell:
        plain = json.loads(arguments.cell)
        cell = Cell(**{**plain, "kind": Kind(plain["kind"]), "phase": Phase(plain["phase"])})
        print(json.dumps(to_plain(try_cell(cell))))
        return
    wanted = [cell for cell in cells(DEVICES) if _is_wanted(cell, arguments)]
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)):
        found = {}
        for cell in wanted:
            seen = tried(cell)
            found[cell] = verdict(cell, seen)
            if arguments.verbose or found[cell] not in _GOOD:
                print(*asdict(cell).values(), "->", found[cell], "|", seen.message[:300], flush=True)
    print(summary(found))


def tried(cell: Cell) -> Seen:
    """What comes of a cell: in this process, where that can go on afterwards and has not opened the device."""
    if not cell.ends_the_process and not (cell.phase is Phase.OPEN and cell.form == "in process"):
        return try_cell(cell)
    command = [sys.executable, __file__, "--cell", json.dumps(asdict(cell))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 0 and done.stdout.strip():
        plain = json.loads(done.stdout.splitlines()[-1])
        return Seen(**{**plain, "warned": tuple(plain["warned"])})
    line = next((line for line in done.stderr.splitlines() if "call '" in line), done.stderr.strip()[-200:])
    return Seen(ended=f"{done.returncode}: {line}", message=line)


def summary(found: dict[Cell, str]) -> str:
    """A row for each fault and phase, a column for each form, device and policy that was tried."""
    columns = list(dict.fromkeys((cell.form, cell.device) for cell in found))
    rows = []
    for kind, phase in dict.fromkeys((cell.kind, cell.phase) for cell in found):
        row = [kind.value, phase.value]
        for form, device in columns:
            said = Counter(
                text
                for cell, text in found.items()
                if (cell.kind, cell.phase, cell.form, cell.device) == (kind, phase, form, device)
            )
            row.append("; ".join(f"{text}" if len(said) == 1 else f"{text} x{count}" for text, count in said.items()))
        rows.append(row)
    good = sum(text in _GOOD for text in found.values())
    head = ["fault", "phase", *(f"{form}, {device}" for form, device in columns)]
    return f"{table(head, rows)}\n{good} of {len(found)} cells as they should be; {dict(Counter(found.values()))}"


def _is_wanted(cell: Cell, arguments: argparse.Namespace) -> bool:
    return (
        cell.kind.value in (arguments.kind or list(Kind))
        and cell.phase.value in (arguments.phase or list(Phase))
        and cell.form in (arguments.form or FORMS)
        and cell.device in (arguments.device or DEVICES)
        and cell.policy in (arguments.policy or POLICIES)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=list(Kind))
    parser.add_argument("--phase", action="append", choices=list(Phase))
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--device", action="append", choices=DEVICES)
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--verbose", action="store_true", help="print every cell")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
