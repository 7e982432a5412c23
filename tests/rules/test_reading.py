"""Rules files: what is read, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.errors import RulesError
from nnadapter.rules import read_rules

GOOD = """# how to place our model
[[pin]]
device = "cpu"
op_type = "Erf"

[[ban]]
device = "fake_npu"
name = "/layer3/*"
from = "x"
to = ["y", "z"]

[[pin]]
device = "fake_npu"
name = "/häupt/*"

[limits]
max_segments = 4
min_benefit_ms = 0.2
"""


def expected(source):
    return nna.Rules(
        pins=(nna.Pin(device="cpu", op_type="Erf"), nna.Pin(device="fake_npu", name="/häupt/*")),
        bans=(nna.Ban(device="fake_npu", name="/layer3/*", from_="x", to=("y", "z")),),
        limits=nna.Limits(max_segments=4, min_benefit_ms=0.2),
        source=source,
    )


@pytest.mark.parametrize("contents", [GOOD, GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD])
def test_files(tmp_path, contents):
    path = tmp_path / "rules.toml"
    path.write_bytes(contents.encode())
    for given in (path, str(path)):
        rules = read_rules(given)
        assert rules == expected(str(path)) and rules.source == str(path)
        assert [rule.line for rule in rules] == [2, 12, 6] and rules.limits.line == 16
        assert rules.place(rules.bans[0]) == f"ban in {path} line 6"


def test_texts_and_rules():
    rules = read_rules(GOOD)
    assert rules == expected("")
    assert read_rules(rules) is rules
    assert read_rules("\n") == nna.Rules()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[[pin]\ndevice = "cpu"', 1, "no TOML"),
        ('\n[[pin]]\ndevice = "cpu', 3, "no TOML"),
        ("a = [\n1,\n", 3, "no TOML"),
        (f"a = {'[' * 5000}\n", None, "nested too deeply"),
        ("\nmax_segments = 3", 2, "no key 'max_segments'"),
        ('[[pins]]\ndevice = "cpu"', 1, "no key 'pins'; did you mean 'pin'?"),
        ('[pin]\ndevice = "cpu"', 1, r"write \[\[pin\]\], with two brackets"),
        ("[[limits]]\nmax_segments = 3", 1, r"write \[limits\], with one bracket"),
        ("\nban = [3]", 2, r"ban 1 is a table, got 3; write \[\[ban\]\]"),
        ('[[ban]]\nop_type = "Erf"\n', 1, "ban 1: it names no device"),
        ('[[pin]]\ndevice = "cpu"\n', 1, "pin 1: it selects no node"),
        ('[[pin]]\ndevice = "cpu"\nname = "a"\n[[pin]]\ndevice = "cpu"\noptype = "a"', 6, "pin 2: .* 'optype'"),
        ('[[pin]]\ndevice = "cpu"\nname = "a"\nline = 3', 4, "pin 1: there is no key 'line'"),
        ('[[pin]]\ndevice = "cpu"\nname = 3', 1, "pin 1: 'name' is a text, got 3"),
        ('\n[[pin]]\ndevice = "cqu"\nname = "a"', 2, "no driver offers a device named 'cqu'; did you mean 'cpu'"),
        ("\n[limits]\n\nmax_segment = 3", 4, "limits: there is no key 'max_segment'; did you mean 'max_segments'"),
        ("[limits]\nmin_nodes = 3\nmax_segments = -3", 3, "limits: 'max_segments' is a whole number"),
        ("[limits]\nmin_benefit_ms = nan", 2, "got nan"),
        ('[[pin]]\ndevice="cpu"\nname="a"\n[[pin]]\ndevice="null"\nname="a"', 4, "1 and pin .* line 4 pin the same"),
        ('[[ban]]\ndevice="cpu"\nname="a"\n[[pin]]\ndevice="cpu"\nname="a"', 1, "line 4 and ban .* line 1 contradict"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, line, said, end):
    path = tmp_path / "rules.toml"
    path.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(RulesError, match=said) as caught:
        read_rules(path)
    assert caught.value.line == line and caught.value.source == str(path)
    assert str(path) in str(caught.value) and (line is None or f"line {line}" in str(caught.value))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(RulesError, match=r"nope.toml' cannot be read: No such file"):
        read_rules(tmp_path / "nope.toml")
    with pytest.raises(RulesError, match="cannot be read"):
        read_rules(tmp_path)
    with pytest.raises(RulesError, match="cannot be read"):
        read_rules("\0")
    (tmp_path / "a.toml").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(RulesError, match="save it as UTF-8"):
        read_rules(tmp_path / "a.toml")
    with pytest.raises(RulesError, match="are a path, a text or an nnadapter.Rules, got 3"):
        read_rules(3)


def test_truncated_files_are_an_error_or_fewer_rules(tmp_path):
    contents = GOOD.encode()
    for length in range(len(contents)):
        path = tmp_path / "rules.toml"
        path.write_bytes(contents[:length])
        try:
            rules = read_rules(path)
        except RulesError as error:
            assert str(path) in str(error)
        else:
            assert len(rules.pins) <= 2 and len(rules.bans) <= 1
