"""docs/faults.md says what there is."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import fields

from nnadapter.drivers.faulty import KINDS, OPTIONS, Fault, Kind, Phase, read_script

PAGE = (Path(__file__).parents[3] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_table_has_every_kind():
    for kind, row in KINDS.items():
        phases = [f"`{phase.value}`" for phase in Phase if phase in row.phases]
        where = "all" if len(phases) == len(Phase) else ", ".join(phases)
        keys = ", ".join(f"`{key}`" for key in row.keys)
        assert f"| `{kind.value}` | {row.description} | {where} | {keys} |".replace("  ", " ") in PAGE.replace(
            "  ", " "
        )
    for phase in Phase:
        assert f"| `{phase.value}` | " in PAGE
    for option in OPTIONS:
        assert f"| `{option.name}` | " in PAGE
    of_kinds = {key for row in KINDS.values() for key in row.keys} | {"kind", "phase"}
    for field in fields(Fault):
        assert f"`{field.encode_name}`" in PAGE and (
            field.encode_name in of_kinds or f"| `{field.encode_name}` |" in PAGE
        )


def test_the_script_can_be_read():
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = read_script(text)
    assert script.seed == 7 and {fault.kind for fault in script.faults} > {Kind.FAIL, Kind.CRASH, Kind.NAN}


def test_the_examples_run(capsys):
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, {})
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [
        "faulty:fake_npu",
        "cpu",
        "faulty:fake_npu",
    ]
