from __future__ import annotations

import pytest

from nnadapter.drivers.faulty import KINDS, Fault, Kind, Phase, Script, read_script, script_in
from nnadapter.errors import FaultScriptError

HEAD = "[[fault]]\n"


def test_script_from_a_file_equals_its_text(tmp_path):
    text = 'seed = 3\n[[fault]]\nkind = "nan"\nphase = "run"\nfrom = 2\nevery = 3\n'
    path = tmp_path / "faults.toml"
    path.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    expected = Script(faults=(Fault(kind=Kind.NAN, phase=Phase.RUN, from_=2, every=3),), seed=3)
    assert read_script(path) == read_script(text) == expected
    assert script_in({"NNADAPTER_FAULTS": str(path)}) == expected
    assert script_in({}) == Script()


def test_script_round_trip():
    faults = [
        Fault(kind=kind, phase=next(phase for phase in Phase if phase in row.phases), seconds=seconds, probability=0.5)
        for kind, row in KINDS.items()
        for seconds in [0.25 if "seconds" in row.keys else None]
    ]
    more = Fault(kind="fail", phase="run", name='a "b"*', op_type="Conv", error="TransientError", message="\\n\n\x01é")
    script = Script(faults=(*faults, more, Fault(kind="exit", phase="open", code=0, nth=1)), seed=9, log="a\\b")
    assert read_script(script.to_toml()) == script


@pytest.mark.parametrize(
    ("text", "entry", "key", "words"),
    [
        ('kind = "fial"\nphase = "run"\n', "fault 1", "kind", "did you mean 'fail'"),
        ('kind = "fail"\nphase = "runs"\n', "fault 1", "phase", "did you mean 'run'"),
        ('kind = "fail"\n', "fault 1", "phase", "it is missing"),
        ('kind = "nan"\nphase = "judge"\n', "fault 1", "", "'nan' occur in phase 'run', not in 'judge'"),
        ('kind = "slow"\nphase = "run"\n', "fault 1", "", "'slow' needs the key 'seconds'"),
        (
            'kind = "nan"\nphase = "run"\nsignal = "SIGSEGV"\n',
            "fault 1",
            "",
            "have no key 'signal'; .*they have 'output'",
        ),
        ('kind = "crash"\nphase = "run"\nsignal = "SIGSEG"\n', "fault 1", "", "did you mean 'SIGSEGV'"),
        ('kind = "fail"\nphase = "run"\nerror = "Transient"\n', "fault 1", "", "did you mean 'TransientError'"),
        ('kind = "fail"\nphase = "run"\nerror = "FallbackWarning"\n', "fault 1", "", "exception of nnadapter.errors"),
        ('kind = "raise"\nphase = "run"\nerror = "UnicodeDecodeError"\n', "fault 1", "", "no exception of Python that"),
        ('kind = "fail"\nphase = "run"\nnth = 1\nevery = 2\n', "fault 1", "", "'nth' selects one call"),
        ('kind = "fail"\nphase = "run"\nnth = 0\n', "fault 1", "nth", "a whole number >= 1, got 0"),
        ('kind = "fail"\nphase = "run"\nprobability = 2\n', "fault 1", "probability", "<= 1"),
        ('kind = "fail"\nphase = "run"\nprobability = nan\n', "fault 1", "probability", "got nan"),
        ('kind = "fail"\nphase = "run"\n\n[[fault]]\nkind = 3\nphase = "run"\n', "fault 2", "kind", "unknown name"),
        ('kind = "fail"\nphase = "run"\nwhere = 3\n', "fault 1", "where", "unknown key"),
        ('kind = "fail\n', "", "", "at line 2"),
    ],
)
def test_error_messages(text, entry, key, words):
    with pytest.raises(FaultScriptError, match=words) as refused:
        read_script(HEAD + text)
    assert (refused.value.entry, refused.value.key) == (entry, key)
    assert "\n" not in str(refused.value) and str(refused.value).startswith("script of faults")


def test_single_bracket_and_missing_file(tmp_path):
    with pytest.raises(FaultScriptError, match=r"write \[\[fault\]\]"):
        read_script('[fault]\nkind = "fail"\n')
    with pytest.raises(FaultScriptError, match="cannot be read"):
        read_script(tmp_path / "nothing.toml")


@pytest.mark.parametrize("values", [{"kind": "fail"}, {"kind": "no", "phase": "run"}, {"kind": 3, "phase": "run"}])
def test_values_in_python_are_checked_too(values):
    with pytest.raises((FaultScriptError, TypeError)):
        Fault(**values)
    with pytest.raises(FaultScriptError):
        Script(faults=("fail",))
