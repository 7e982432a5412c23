"""`compare` with layers: named, saved and excluded nodes."""

from __future__ import annotations

import json
import shlex

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.errors import InvalidOptionError
from tests import planted_driver
from tests.models import HEAD, numbers, parse

TEXT = f"""{HEAD} g (float[N, 8] x) => (float[N, 8] y) {{
    [first] a = Relu(x)
    [second] b = Neg(a)
    [third] c = Exp(b)
    [fourth] d = Add(a, c)
    [fifth] e = Softmax(d)
    [sixth] y = Mul(e, x)
}}"""
FEED = {"x": numbers(4, 8)}


def look(text=TEXT, feed=FEED, **planted):
    model = text if isinstance(text, onnx.ModelProto) else parse(text)
    return nna.compare(model, ("planted", planted), feed, layers=True)


def names(findings):
    return [finding.nodes for finding in findings]


def test_correct_device_has_no_findings():
    report = look()
    assert report.agrees and report.layers.first is None and report.layers.compilations == 2
    assert "no node is beyond the tolerance on its own; largest difference" in str(report)


def test_first_of_several_wrong_nodes():
    layers = look(wrong=["fourth", "second"]).layers
    assert names(layers.local_errors) == [("second",), ("fourth",)] and layers.first is layers.local_errors[0]
    assert layers.first_accumulated_error.nodes == ("second",)


def test_hidden_inner_error_is_found():
    """A wrong Neg is still negative, so Relu and the outputs hide the error."""
    text = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{
        [first] a = Abs(x)
        [second] b = Add(a, a)
        [third] c = Neg(b)
        [fourth] d = Sub(c, b)
        [fifth] y = Relu(d)
    }}"""
    report = look(text, {"x": np.full((4, 8), 2, np.float32)}, wrong=["fourth"])
    assert names(report.layers.local_errors) == [("fourth",)] and not report.agrees
    tall = {"x": np.full((4, 8), -2, np.float32)}
    text = text.replace("Relu(d)", "ArgMax<axis = 1>(d)").replace("float[4, 8] y", "int64[4, 1] y")
    hidden = look(text, tall, wrong=["second"])
    assert (
        hidden.agrees
        and names(hidden.layers.local_errors) == [("second",)]
        and hidden.layers.first_accumulated_error is None
    )
    assert "the outputs agree, although an inner node differs" in str(hidden)


def test_error_only_if_nodes_are_fused():
    report = look(fused=["fourth", "fifth"])
    assert not report.layers.local_errors and report.layers.fused
    assert report.layers.first.nodes == ("fourth", "fifth")
    assert "wrong only when the device fuses them: 'fourth', 'fifth'" in str(report)


def test_accumulating_error():
    chain = "\n".join(f"[n{number}] v{number + 1} = Neg(v{number})" for number in range(12))
    text = f"{HEAD} g (float[4, 8] v0) => (float[4, 8] v12) {{ {chain} }}"
    report = look(text, {"v0": numbers(4, 8)}, slightly=[f"n{number}" for number in range(12)])
    layers = report.layers
    assert not report.agrees and not layers.local_errors and not layers.fused
    assert (
        len(layers.shortest_deviating_stretch.nodes) > 1
        and layers.shortest_deviating_stretch.nodes[-1] == layers.first_accumulated_error.nodes[0]
    )
    assert "error accumulates over" in str(report)


def test_nodes_on_the_cpu_are_not_checked():
    rules = nna.Rules(bans=(nna.Ban(device="planted", name="third"),))
    report = nna.compare(
        parse(TEXT), ("planted", {"wrong": ["third"]}), FEED, layers=True, options=nna.Options(rules=rules)
    )
    assert report.agrees and report.layers.atoms == 5 and not report.layers.local_errors


def test_groups_are_named_completely():
    text = f"""{HEAD} g (int8[2, 8] x) => (float[2, 8] y) <float s = {{0.1}}, int8 z = {{1}}> {{
        [back] a = DequantizeLinear(x, s, z)
        [inner] b = Sigmoid(a)
        [made] c = QuantizeLinear(b, s, z)
        [out] y = DequantizeLinear(c, s, z)
    }}"""
    layers = look(text, {"x": np.arange(16, dtype=np.int8).reshape(2, 8)}, wrong=["inner"]).layers
    assert layers.first.nodes == ("back", "inner", "made") and layers.first.op_types[1] == "Sigmoid"


def test_nan_and_infinity():
    x = numbers(4, 8)
    x[0, :2] = np.inf, np.nan
    assert names(look(feed={"x": x}, wrong=["third"]).layers.local_errors) == [("third",)]


@pytest.mark.parametrize("wrong", [[0], [7], [15], [3, 11]])
def test_nodes_that_spoil_others_in_their_program_are_found(wrong):
    nodes = "\n".join(f"[n{at}] v{at + 1} = {('Neg', 'Relu')[at % 2]}(v{at})" for at in range(16))
    model = parse(f"{HEAD} g (float[4, 8] v0) => (float[4, 8] v16) {{ {nodes} }}")
    script = "".join(f"[[fault]]\nkind = 'nan'\nphase = 'run'\nname = 'n{at}'\n" for at in wrong)
    report = nna.compare(model, ("faulty:fake_npu", {"script": script}), {"v0": numbers(4, 8)}, layers=True)
    assert names(report.layers.local_errors) == [(f"n{at}",) for at in wrong]
    assert report.layers.first_accumulated_error.nodes == (f"n{wrong[0]}",)
    assert report.layers.largest.nodes[0] in {f"n{at}" for at in wrong}


def test_several_outputs_and_integers():
    text = f"""{HEAD} g (float[4, 8] x) => (float[4, 4] y, int64[4, 1] i) {{
        [split] a, b = Split<axis = 1>(x)
        [product] y = Mul(a, b)
        [index] i = ArgMax<axis = 1>(y)
    }}"""
    layers = look(text, wrong=["split"]).layers
    assert names(layers.local_errors) == [("split",)] and layers.local_errors[0].deviation.value == "a"


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_cpu_and_reference_are_not_checked(device):
    report = nna.compare(parse(TEXT), device, FEED, layers=True)
    assert report.layers.atoms == 0 and report.layers.first is None
    assert (
        str(report.layers) == "  layers: no node ran on a device other than cpu and reference, so nothing was checked"
    )


def test_exact_results_are_reported():
    report = nna.compare(parse(f"{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{ y = Relu(x) }}"), "null", FEED)
    assert not report.agrees
    text = f"{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{ y = Relu(x) }}"
    assert str(look(text).layers).splitlines() == [
        "  layers: 1 on devices, 2 compilations",
        "  no node is beyond the tolerance on its own; results are exactly equal to the CPU's",
    ]


def test_unchecked_nodes_are_reported():
    """Names start with a slash, as in PyTorch's exports; one node runs on another device by choice, not by fallback."""
    text = f"""{HEAD} g (float[4, 8] x) => (float[4, 4] y) {{
        [split] a, b = Split<axis = 1>(x)
        [sum] c = Add(a, b)
        [last] y = Relu(c)
    }}"""
    model = parse(text)
    for node in model.graph.node:
        node.name = f"/{node.name}"
    devices = [("trial", {"only": ["SPLIT", "ADD"], "fault": "split"}), "fake_npu"]
    report = nna.compare(model, devices, {"x": np.ones((4, 8), np.float32)}, layers=True)
    assert not report.agrees and not report.layers.local_errors and report.layers.unchecked == ("/split",)
    assert "no node that could be checked alone is beyond the tolerance on its own" in str(report)
    assert "wrong, including nodes that could not be checked alone: '/split', '/sum'" in str(report)


def test_quantized_values_may_differ_by_one_step(tmp_path):
    text = f"""{HEAD} g (float[4, 8] x) => (uint8[8, 4] y, float[4, 8] z) <float s = {{0.1}}, uint8 o = {{100}}> {{
        [rounded] q = QuantizeLinear(x, s, o)
        [turned] y = Transpose(q)
        [last] z = Relu(x)
    }}"""
    device, rules = ("trial", {"fault": "step", "only": ["QUANTIZE", "QUANTIZE_LINEAR", "RELU"]}), tmp_path / "r.toml"
    report = nna.compare(parse(text), device, FEED, layers=True, rules_out=rules)
    assert report.compared and report.agrees and not report.layers.local_errors and not report.layers.ruled_out.pins
    assert report.differences[0].largest_absolute == 1 and report.differences[0].steps == 1
    assert "quantized values may be off by 1" in str(report)


@pytest.mark.parametrize("planted", [{"wrong": ["third"]}, {"fused": ["fourth", "fifth"]}])
def test_saved_case_reproduces_the_error(tmp_path, planted):
    model = parse(TEXT)
    report = nna.compare(model, ("planted", planted), FEED, layers=True, save=tmp_path / "a folder")
    folder, command = tmp_path / "a folder", report.layers.saved.command
    assert (folder / "command.txt").read_text() == f"{command}\n"
    assert len(onnx.load(folder / "model.onnx").graph.node) == len(report.layers.first.nodes)
    result = CliRunner().invoke(main, shlex.split(command)[1:], catch_exceptions=False)
    assert result.exit_code == 1 and "DIFFERS" in result.stdout
    expected, got = np.load(folder / "expected_0.npy"), np.load(folder / "got_0.npy")
    assert np.abs(expected - got).max() == pytest.approx(report.layers.first.deviation.largest_absolute)


def test_unwritable_save_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOptionError, match="cannot be written"):
        nna.compare(
            parse(TEXT), ("planted", {"wrong": ["third"]}), FEED, layers=True, save=tmp_path / "file" / "folder"
        )


@pytest.mark.parametrize(
    ("planted", "pinned"),
    [
        ({"wrong": ["third"]}, ("third",)),
        ({"wrong": ["second", "sixth"]}, ("second", "sixth")),
        ({"fused": ["fourth", "fifth"]}, ("fourth",)),
        ({}, ()),
    ],
)
def test_suggested_pins_avoid_the_error(tmp_path, planted, pinned):
    path, device = tmp_path / "rules.toml", ("planted", planted)
    found = nna.compare(parse(TEXT), device, FEED, layers=True, rules_out=path).layers.ruled_out
    assert found.pins == pinned and found.agrees
    assert nna.compare(parse(TEXT), device, FEED, options=nna.Options(rules=path)).agrees


def test_invalid_paths_are_refused_before_the_comparison(tmp_path):
    planted_driver.COMPILED.clear()
    for path in (tmp_path, tmp_path / "nowhere" / "rules.toml"):
        with pytest.raises(InvalidOptionError, match="cannot be written"):
            nna.compare(parse(TEXT), "planted", FEED, layers=True, rules_out=path)
    assert not planted_driver.COMPILED


def test_findings_are_printed_despite_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(TEXT), "net.onnx")
    words = "compare net.onnx -d planted --option planted.wrong=third --layers --rules-out /dev/full --shape x=4,8"
    result = CliRunner().invoke(main, words.split(), catch_exceptions=False)
    assert result.exit_code == 2 and "wrong on its own: 'third'" in result.stdout and "No space left" in result.stderr


def test_report_as_plain_data():
    data = json.loads(json.dumps(look(wrong=["third"]).to_dict()))
    assert (
        data["layers"]["first"]["nodes"] == ["third"] and data["layers"]["local_errors"][0]["deviation"]["value"] == "c"
    )
    assert "layers" not in nna.compare(parse(TEXT), "planted", FEED).to_dict()


def test_output_files_require_layers():
    with pytest.raises(InvalidOptionError, match="pass layers=True"):
        nna.compare(parse(TEXT), "planted", FEED, save="folder")


def test_compare_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(TEXT), "net.onnx")
    np.save("x.npy", FEED["x"])
    words = "compare net.onnx -d planted --option planted.wrong=third --input x=x.npy --layers --rules-out rules.toml"
    result = CliRunner().invoke(main, words.split(), catch_exceptions=False)
    assert result.exit_code == 1 and "wrong on its own: 'third' (Exp) on planted" in result.stdout
    assert "saved in net-layers; reproduce it with: nnadapter compare net-layers/model.onnx" in result.stdout
    again = CliRunner().invoke(main, [*words.split()[:8], "--rules", "rules.toml"], catch_exceptions=False)
    assert again.exit_code == 0 and "5 of 6 nodes ran on planted" in again.stdout
