"""Modules and exported programs as models, and those that a command line names."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli.entry import main
from nnadapter.errors import InvalidModelError, InvalidOptionError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="the exporter of PyTorch needs it")

SCRIPT = """
import torch

def make_model():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval(), (torch.ones(4, 3),)

def make_nothing():
    return 3
"""


@pytest.mark.parametrize("given", ["a tuple", "a tensor", "keywords"])
def test_a_module_is_a_model_with_its_inputs(given):
    model, x = torch.nn.Linear(3, 2).eval(), torch.randn(4, 3)
    inputs = {"a tuple": (x,), "a tensor": x, "keywords": {"input": x}}[given]
    with nna.InferenceSession(model, inputs, devices=["fake_npu"]) as session:
        (found,) = session.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach())
        assert session.report().coverage.nodes == 1


def test_an_exported_program_is_a_model_with_open_sizes():
    model, rows = torch.nn.Linear(3, 2).eval(), torch.export.Dim("rows")
    program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: rows},))
    with nna.InferenceSession(program, devices=["fake_npu"]) as session:
        for count in (4, 5):
            x = torch.randn(count, 3)
            (found,) = session.run(None, {"input": x.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), model(x).detach())


def test_a_module_without_inputs_is_told_what_to_give():
    with pytest.raises(InvalidOptionError, match=r"give inputs: InferenceSession\(linear, \(x,\)\)"):
        nna.InferenceSession(torch.nn.Linear(3, 2))


def test_what_the_exporter_cannot_write_is_one_sentence():
    class Complicated(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    with pytest.raises(InvalidModelError, match="PyTorch's exporter cannot write Complicated as ONNX: ") as caught:
        nna.InferenceSession(Complicated(), (torch.ones(2),))
    assert "\n" not in str(caught.value)


def test_an_average_with_a_divisor_of_its_own_is_refused():
    with pytest.raises(InvalidModelError, match="leaves out divisor_override= of an average in AvgPool2d"):
        nna.InferenceSession(torch.nn.AvgPool2d(2, divisor_override=3), (torch.ones(1, 1, 4, 4),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),)), tmp_path / "linear.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"no program")
    return tmp_path


def asked(*words):
    return CliRunner().invoke(main, ["report", *map(str, words), "-d", "fake_npu"])


@pytest.mark.parametrize("named", ["script.py:make_model", "linear.pt2"])
def test_a_report_of_what_the_command_line_names(folder, named):
    done = asked(folder / named)
    assert done.exit_code == 0, done.output
    assert "coverage   100.0% of nodes" in done.output


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("script.py:make_nothing", "is to return a module and its inputs, or an exported program, got int"),
        ("script.py:make_more", "names no function; give SCRIPT.py:FUNCTION"),
        ("nowhere.py:make_model", "there is no such file"),
        ("broken.pt2", "is no exported program"),
    ],
)
def test_what_is_wrong_there_is_one_line(folder, named, said):
    done = asked(folder / named)
    assert done.exit_code == 2 and said in done.output
