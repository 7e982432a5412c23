from __future__ import annotations

import re
from pathlib import Path

from nnadapter.drivers.faulty import Kind, read_script

PAGE = (Path(__file__).parents[3] / "docs" / "failures.md").read_text(encoding="utf-8")


def test_documented_script_is_valid():
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = read_script(text)
    assert script.seed == 7 and {fault.kind for fault in script.faults} > {Kind.FAIL, Kind.CRASH, Kind.NAN}


def test_documented_examples_run(capsys):
    section = PAGE.split("## Faults on demand")[1]
    for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        exec(code, {})
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [
        "faulty:fake_npu",
        "cpu",
        "faulty:fake_npu",
    ]
