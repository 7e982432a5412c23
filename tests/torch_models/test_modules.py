from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.errors import InvalidModelError, InvalidOptionError
from nnadapter.session import PEERS
from tests.every import few_of

SCRIPT = """
import torch

def make_model():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval(), (torch.ones(4, 3),)

def make_nothing():
    return 3

def make_sized(rows, columns=3, *others):
    return torch.nn.ReLU(), (torch.ones(rows, columns),)

def make_trouble():
    raise ValueError("no\\nweights")

def make_an_end():
    exit(0)

def make_noise():
    import beside
    print(beside.NOISE)
    return make_model()
"""


@pytest.mark.parametrize("given", ["a tuple", "a tensor", "keywords"])
def test_session_accepts_a_module_with_inputs(given):
    model, x = torch.nn.Linear(3, 2).eval(), torch.randn(4, 3)
    inputs = {"a tuple": (x,), "a tensor": x, "keywords": {"input": x}}[given]
    with nna.InferenceSession(model, inputs, devices=["fake_npu"]) as session:
        (result,) = session.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(result), model(x).detach())
        assert session.report().coverage.nodes == 1


def test_exported_program_is_a_model_with_dynamic_sizes():
    model, rows = torch.nn.Linear(3, 2).eval(), torch.export.Dim("rows")
    program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: rows},))
    with nna.InferenceSession(program, devices=["fake_npu"]) as session:
        for count in (4, 5):
            x = torch.randn(count, 3)
            (result,) = session.run(None, {"input": x.numpy()})
            torch.testing.assert_close(torch.from_numpy(result), model(x).detach())


def test_inputs_returned_as_outputs_keep_their_names():
    class Passing(torch.nn.Module):
        def forward(self, x, y):
            return y, x + y, y

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    with nna.InferenceSession(Passing(), (x, y), devices=["fake_npu"]) as session:
        result = session.run(None, {"x": x.numpy(), "y": y.numpy()})
        assert len({value.name for value in (*session.get_inputs(), *session.get_outputs())}) == 5
    for each, expected in zip(result, Passing()(x, y), strict=True):
        torch.testing.assert_close(torch.from_numpy(each), expected)


def test_module_without_inputs_is_an_error():
    with pytest.raises(InvalidOptionError, match=r"needs inputs; pass InferenceSession\(linear, \(x,\)\)"):
        nna.InferenceSession(torch.nn.Linear(3, 2))


def test_unexportable_module_is_an_error():
    class Complicated(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    with pytest.raises(InvalidModelError, match="PyTorch's exporter cannot write Complicated as ONNX: ") as caught:
        nna.InferenceSession(Complicated(), (torch.ones(2),))
    assert "\n" not in str(caught.value)


TRAINED = {
    "statistics": (torch.nn.BatchNorm1d(3), torch.randn(8, 3), r"changes '.*' when it is called, .*; call eval\(\)"),
    "dropout": (torch.nn.Dropout(0.5), torch.randn(8, 3), r"draws random numbers; call eval\(\)"),
    "layers": (torch.nn.LSTM(3, 2, 2, dropout=0.5), torch.randn(8, 3), r"draws random numbers; call eval\(\)"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", TRAINED)
def test_training_mode_is_refused_if_results_differ(name):
    layer, x, said = TRAINED[name]
    with pytest.raises(InvalidModelError, match=said) as caught:
        nna.InferenceSession(layer.train(), (x,))
    assert "\n" not in str(caught.value)
    with nna.InferenceSession(layer.eval(), (x,)) as session:
        result = session.run(None, {"input": x.numpy()})
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(layer(x))
    torch.testing.assert_close([torch.from_numpy(each) for each in result], expected)


class Masking(torch.nn.Module):
    def forward(self, x):
        """Apply attention of four heads with a fully masked element, and of one head with a float mask."""
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        mask[4] = False
        attention = torch.nn.functional.scaled_dot_product_attention
        heads = attention(
            x.unflatten(2, (4, 4)).transpose(1, 2),
            x.view(2, 2, 5, 8)[..., :4],
            x.view(2, 2, 5, 8)[..., 4:],
            attn_mask=mask,
            enable_gqa=True,
        )
        return heads, attention(x, x, x, attn_mask=mask.float(), scale=0.3), attention(x, x, x, is_causal=True)


SEEDED = {
    "encoder": torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
    "masks": Masking(),
    "lstm": torch.nn.LSTM(16, 8, 2, dropout=0.5, bidirectional=True),
    "lstm with projections": torch.nn.LSTM(16, 8, proj_size=4),
    "gru": torch.nn.GRU(16, 8, batch_first=True),
    "rnn": torch.nn.RNN(16, 8, 2, dropout=0.5),
    "dropout": torch.nn.FeatureAlphaDropout(),
}
"""Modules that draw random numbers in training but not at inference."""


@pytest.mark.sweep
@pytest.mark.filterwarnings(
    "ignore:The tensor attributes? .* assigned during export:UserWarning"
)  # PyTorch warns about itself
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("name", few_of(SEEDED, "encoder", "rnn", "dropout"))
def test_training_only_randomness_is_accepted_at_inference(name):
    module, x = SEEDED[name].eval(), torch.randn(2, 5, 16)
    for given in ((module, (x,)), (torch.export.export(module, (x,)),)):
        with nna.InferenceSession(*given, devices=["fake_npu"]) as session:
            result = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(module(x))
        for each, wanted in zip(result, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(each), wanted, rtol=1e-4, atol=1e-5)


def of(function):
    return type("Made", (torch.nn.Module,), {"forward": lambda self, x: function(x)})()


AS_COMPILED = {
    "half sum": (lambda x: x.sum(), torch.randn(3, 4).half()),
    "statistics of a batch": (
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        torch.randn(8, 3),
    ),
    "floor": (lambda x: x // 0.1, torch.tensor([1.0, -0.3, 2.5])),
    "sign": (lambda x: x.sign(), torch.tensor([float("nan"), -3.0])),
    "no mask": (lambda x: torch.nn.functional.max_pool2d(x, 2), torch.randn(1, 1, 4, 4)),
}


@pytest.mark.parametrize("name", AS_COMPILED)
def test_module_results_equal_pytorch(name):
    function, x = AS_COMPILED[name]
    with nna.InferenceSession(of(function), (x,)) as session:
        (result,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), function(x), rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x >> 1, torch.tensor([200, 3], dtype=torch.uint8)),
        (lambda x: x.mean(0), torch.ones(0, 3)),
    ],
)
def test_inexactly_exported_functions_are_refused(function, x):
    with pytest.raises(InvalidModelError, match="cannot be part of a session: .* runs it in PyTorch"):
        nna.InferenceSession(of(function), (x,))


def test_average_with_divisor_override_is_refused():
    with pytest.raises(InvalidModelError, match="ONNX average pools have no divisor"):
        nna.InferenceSession(torch.nn.AvgPool2d(2, divisor_override=3), (torch.ones(1, 1, 4, 4),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NOISE = 'made with care'")
    (tmp_path / "unfinished.py").write_text("def make_model(:")
    (tmp_path / "stopped.py").write_text("import sys; sys.exit('not now')")
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),)), tmp_path / "linear.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"no program")
    return tmp_path


def invoke_report(*words):
    return CliRunner().invoke(main, ["report", *map(str, words), "-d", "fake_npu"])


@pytest.mark.parametrize("named", ["script.py:make_model", "linear.pt2"])
def test_report_of_models_named_on_the_command_line(folder, named):
    outcome = invoke_report(folder / named)
    assert outcome.exit_code == 0, outcome.output
    assert "coverage   100.0% of nodes" in outcome.output


@pytest.mark.parametrize(
    "words",
    [("run",), ("compare",), ("compile", "-o", "made.nna"), ("bench", "--rounds", "1")],
    ids=lambda words: words[0],
)
def test_commands_accept_exported_programs(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    outcome = CliRunner().invoke(main, [words[0], "linear.pt2", *words[1:], "-d", "fake_npu"])
    assert outcome.exit_code == 0, outcome.output
    assert words[0] != "compile" or (folder / "made.nna").stat().st_size


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("script.py:make_nothing", "must return a module and its inputs, or an exported program, got int"),
        ("script.py:make_more", "does not name a function; pass SCRIPT.py:FUNCTION"),
        ("script.py:make_sized", "names a function that needs rows; pass one without parameters"),
        ("script.py:make_trouble", "raises ValueError: no weights (script.py:14); fix the script"),
        ("script.py:make_an_end", "exits with code 0; the script and the function must return"),
        ("unfinished.py:make_model", "raises SyntaxError: "),
        ("stopped.py:make_model", "exits with code 'not now'"),
        ("nowhere.py:make_model", "does not exist"),
        ("broken.pt2", "is not an exported program"),
    ],
)
def test_command_line_errors_are_one_line(folder, named, message):
    outcome = invoke_report(folder / named)
    assert outcome.exit_code == 2 and message in outcome.output and "Traceback" not in outcome.output


def test_broken_program_file_logs_nothing(folder):
    logged, log = [], logging.getLogger("torch.export")
    handler = logging.Handler()
    handler.emit = logged.append
    log.addHandler(handler)
    try:
        invoke_report(folder / "broken.pt2")
    finally:
        log.removeHandler(handler)
    assert not logged


def test_output_of_a_script_is_not_in_the_report(folder):
    outcome = invoke_report(folder / "script.py:make_noise", "--format", "json")
    assert outcome.exit_code == 0 and json.loads(outcome.stdout)["nodes"]
    assert "made with care" in outcome.stderr


def test_misfit_module_inputs_are_an_error():
    told, log = [], logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.Handler()
    handler.emit = told.append
    log.addHandler(handler)
    try:
        with pytest.raises(InvalidModelError, match=r"Linear as one graph: a and b must .* X \[2, 2\]; torch.compile"):
            nna.InferenceSession(torch.nn.Linear(2, 2), (torch.ones(1, 3),))
    finally:
        log.removeHandler(handler)
    assert not told


def test_functions_accept_exported_programs():
    program, feed = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)), {"input": np.ones((2, 3), np.float32)}
    assert nna.partition_report(program, "fake_npu").nodes
    timed = nna.bench(program, "fake_npu", feed, against=PEERS, rounds=1)
    assert timed.ran_on_devices and not any(peer.differing_outputs or peer.failure for peer in timed.baselines)
    for ask in (nna.partition_report, nna.bench):
        with pytest.raises(InvalidOptionError, match=r"or the result of torch.export.export"):
            ask(torch.nn.ReLU(), "fake_npu")
