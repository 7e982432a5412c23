"""Compiled models with drivers that fail at serialization: written, loaded and right nevertheless."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.drivers import Compatibility
from nnadapter.errors import DriverWarning
from tests.keeping_driver import ASKED, FAULTS
from tests.models import CHAIN, numbers, parse, run_whole

X = {"x": numbers(2, 3)}
AGAIN = "segment 0 was compiled again for keeping: "


@pytest.fixture(autouse=True)
def sound():
    yield
    FAULTS.clear()
    ASKED.clear()


def loaded_notes(path):
    with nna.InferenceSession(path) as session:
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, X)[0], run_whole(parse(CHAIN), X)[0], rtol=1e-6)
            assert [step.device for step in session.provenance.steps] == ["keeping"]
        return session.report().notes


def test_driver_without_faults_deserializes(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["keeping"])
    ASKED.clear()
    assert loaded_notes(tmp_path / "f") == ()
    assert ASKED == ["check_blob", "deserialize"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("check_blob raises", "the driver failed in check_blob: KeyError: 'no such thing'"),
        ("check_blob exits", "the driver failed in check_blob: SystemExit: 3"),
        ("check_blob gives a word", "the driver returned str from check_blob, expected a Compatibility or None"),
        ("check_blob gives a number", "the driver returned int from check_blob, expected a Compatibility or None"),
        (
            "check_blob gives a class",
            f"the driver returned {type(Compatibility).__name__} from check_blob, expected a Compatibility or None",
        ),
        ("deserialize raises", "KeyError: 'no such thing'"),
        ("deserialize gives nothing", "the driver returned NoneType, expected a Program"),
        ("deserialize gives words for bytes", "TypeError: 'str' object cannot be interpreted as an integer"),
    ],
)
def test_failing_deserialization_recompiles_with_a_note(tmp_path, fault, said):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["keeping"])
    FAULTS.add(fault)
    assert loaded_notes(tmp_path / "f") == (AGAIN + said,)
    assert ASKED[-1] == "compile"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("serialize raises", "KeyError: 'no such thing'"),
        ("serialize gives a word", "serialize returned str, expected bytes or None"),
    ],
)
def test_failing_serialization_compiles_at_load_time(tmp_path, fault, said):
    FAULTS.add(fault)
    with pytest.warns(DriverWarning, match="'keeping' failed to serialize segment 0: ") as heard:
        nna.compile(parse(CHAIN), tmp_path / "f", devices=["keeping"])
    assert said in str(heard[0].message)
    FAULTS.clear()
    assert loaded_notes(tmp_path / "f") == ("segment 0 was compiled for keeping: no program of it is stored",)


def test_driver_without_serialization_compiles_with_a_note(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["trial"])
    with nna.InferenceSession(tmp_path / "f") as session:
        assert session.report().notes == ("segment 0 was compiled for trial: no program of it is stored",)


@pytest.mark.parametrize("fault", ["check_blob raises", "check_blob gives a word"])
def test_check_reports_the_driver_fault(tmp_path, fault):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["keeping"])
    check = CliRunner().invoke(main, ["compile", "--check", str(tmp_path / "f")])
    assert check.exit_code == 0 and check.stdout == f"{tmp_path / 'f'}: runs on this machine unchanged\n"
    FAULTS.add(fault)
    check = CliRunner().invoke(main, ["compile", "--check", str(tmp_path / "f")])
    (reason,) = check.stdout.splitlines()
    assert check.exit_code == 1
    assert "segment 0 is compiled again for 'keeping': the driver" in reason and "check_blob" in reason
