from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import nnadapter as nna
from nnadapter.errors import DeviceNotFoundError, InvalidOptionError

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.sweep  # tests/test_readme.py uses the name as well
def test_pytorch_finds_the_back_end_by_name(tmp_path, monkeypatch):
    points = PROJECT["entry-points"]["torch_dynamo_backends"]
    folder = tmp_path / "found-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: found\nVersion: 1.0\n")
    lines = [f"{name} = {target}\n" for name, target in points.items()]
    (folder / "entry_points.txt").write_text("".join(["[torch_dynamo_backends]\n", *lines]))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch\n"
        "run = torch.compile(torch.relu, backend='nnadapter', options={'devices': ['fake_npu']})\n"
        "import nnadapter as nna\n"
        "print(run(torch.tensor([-1.0, 2.0])).tolist(), nna.torch.report(run).graphs[0].delegated)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "[0.0, 2.0] 1\n", process.stderr


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"devices": ["nowhere"]}, DeviceNotFoundError, "no driver offers a device named 'nowhere'"),
        ({"devices": [3]}, InvalidOptionError, "got 3"),
        ({"devices": 3}, InvalidOptionError, "got 3"),
        ({"device": ["fake_npu"]}, InvalidOptionError, "there is no option 'device'; did you mean 'devices'?"),
        ({"policy": "fast"}, InvalidOptionError, "option 'policy' must be one of"),
        (["fake_npu"], InvalidOptionError, "options of torch.compile must be a dictionary with devices, policy"),
    ],
)
def test_invalid_options_are_errors(options, error, message):
    run = torch.compile(torch.relu, backend=nna.torch.nnadapter, options=options)
    for _ in range(2):
        with pytest.raises(error) as caught:
            run(torch.ones(2))
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_modes_of_another_back_end_are_refused():
    run = torch.compile(torch.relu, backend=nna.torch.nnadapter, mode="reduce-overhead")
    with pytest.raises(InvalidOptionError, match="accepts only options=, got mode=; remove it"):
        run(torch.ones(2))


@pytest.mark.sweep
def test_direct_call_with_a_graph():
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.randn(4, 3)
    graph = torch.fx.symbolic_trace(model)
    run = nna.torch.nnadapter(graph, [x], options={"devices": ["fake_npu"]})
    torch.testing.assert_close(run(x), model(x))
    run(x).sum().backward()
    result = model[0].weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(result, model[0].weight.grad)


def test_report_contains_each_set_of_devices():
    def function(x):
        return x.exp() + 1

    for name in ("fake_npu", "null"):
        run = torch.compile(function, backend=nna.torch.nnadapter, options={"devices": [name]})
        run(torch.ones(2))
    devices = [graph.sessions[0].devices[0] for graph in nna.torch.report(run).graphs]
    assert devices == ["fake_npu", "null"]


def test_report_requires_a_compiled_function():
    with pytest.raises(InvalidOptionError, match="report needs a result of torch.compile, got int"):
        nna.torch.report(3)
    assert nna.torch.report(torch.relu).graphs == ()
