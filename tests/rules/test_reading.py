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
        assert [rules.entry_location(rule) for rule in rules] == [
            f"{each} in {path}" for each in ("pin 1", "pin 2", "ban 1")
        ]
        assert rules.limit_location("max_segments") == f"max_segments in {path}"


def test_texts_and_rules():
    rules = read_rules(GOOD)
    assert rules == expected("")
    assert read_rules(rules) is rules
    assert read_rules("\n") == nna.Rules()


@pytest.mark.parametrize(
    ("text", "entry", "key", "message"),
    [
        ('[[pin]\ndevice = "cpu"', "", "", r"cut off: .* line 1, column 6"),
        ('\n[[pin]]\ndevice = "cpu', "", "", "cut off: .*end of document"),
        ("a = [\n1,\n", "", "", "cut off: .*end of document"),
        ('[[pin]]\ndevice = "cpu"\ndevice = "null"', "", "", "overwrite a value"),
        (f"a = {'[' * 5000}\n", "", "", "nested too deeply"),
        ("\nmax_segments = 3", "", "max_segments", "unknown key; known: ban, limits, pin"),
        ('[[pins]]\ndevice = "cpu"', "", "pins", "unknown key; did you mean 'pin'?"),
        ('[pin]\ndevice = "cpu"', "", "pin", r"expected a list, got an object; write \[\[pin\]\], with two brackets"),
        ("[[limits]]\nmax_segments = 3", "", "limits", r"got a list of 1; write \[limits\], with one bracket"),
        ("\nban = [3]", "ban 1", "", r"expected an object, got 3; write \[\[ban\]\], with two brackets"),
        ('[[ban]]\nop_type = "Erf"\n', "ban 1", "", "names no device and no precision; "),
        ('[[pin]]\ndevice = "cpu"\n', "pin 1", "", "the rule selects no node; set op_type"),
        ('[[pin]]\ndevice = "cpu"\nname = "a"\n[[pin]]\ndevice = "cpu"\noptype = "a"', "pin 2", "optype",
         "unknown key; did you mean 'op_type'?"),
        ('[[pin]]\ndevice = "cpu"\nname = "a"\nline = 3', "pin 1", "line", "unknown key"),
        ('[[pin]]\ndevice = "cpu"\nfrom_ = "a"\nto = "b"', "pin 1", "from_", "unknown key; did you mean 'from'"),
        ('[[pin]]\ndevice = "cpu"\nname = 3', "pin 1", "name", "expected a text or nothing, got 3"),
        ('[[pin]]\ndevice = "cpu"\nname = " "', "pin 1", "", "'name' of the rule is an empty text"),
        ('[[pin]]\ndevice = "cpu"\nfrom = ["x", ""]\nto = "y"', "pin 1.from 2", "", "a text of length >= 1, got ''"),
        ('\n[[pin]]\ndevice = "cqu"\nname = "a"', "pin 1", "device", "no driver offers .* 'cqu'; did you mean 'cpu'"),
        ("\n[limits]\n\nmax_segment = 3", "limits", "max_segment", "unknown key; did you mean 'max_segments'"),
        ("[limits]\nmin_nodes = 3\nmax_segments = -3", "limits", "max_segments", "a whole number >= 1, got -3"),
        (f"[limits]\nmin_nodes = 0x{'f' * 9999}", "limits", "min_nodes", "a whole number <= .* got one of 39996 bits"),
        ("[limits]\nmin_benefit_ms = nan", "limits", "min_benefit_ms", "a number >= 0.0, got nan"),
        ("[limits]\nmin_benefit_ms = inf", "limits", "min_benefit_ms", "got inf"),
        ('[[pin]]\ndevice="cpu"\nname="a"\n[[pin]]\ndevice="null"\nname="a"', "pin 2", "", "pin 1 in .* pin the same"),
        ('[[ban]]\ndevice="cpu"\nname="a"\n[[pin]]\ndevice="cpu"\nname="a"', "ban 1", "", "pin 1 in .* contradict"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_errors_name_file_entry_and_key(tmp_path, text, entry, key, message, end):
    path = tmp_path / "rules.toml"
    path.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(RulesError, match=message) as caught:
        read_rules(path)
    assert (caught.value.file, caught.value.entry, caught.value.key) == (str(path), entry, key)
    assert str(path) in str(caught.value) and entry in str(caught.value) and key in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(RulesError, match=r"nope.toml': it cannot be read: No such file"):
        read_rules(tmp_path / "nope.toml")
    with pytest.raises(RulesError, match="cannot be read"):
        read_rules(tmp_path)
    with pytest.raises(RulesError, match="cannot be read"):
        read_rules("\0")
    (tmp_path / "a.toml").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(RulesError, match="save it as UTF-8"):
        read_rules(tmp_path / "a.toml")
    with pytest.raises(RulesError, match="must be a path, a text or an nnadapter.Rules, got 3"):
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
