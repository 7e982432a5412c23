from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from torch import nn

import nnadapter as nna

ON_NPU = {"devices": ["fake_npu"]}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model, **options):
    return torch.compile(model, backend=nna.torch.nnadapter, options={**ON_NPU, **options})


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.convolution(images))).mean((2, 3)))


@torch.no_grad()
def test_network_runs_entirely_on_the_device():
    model = Convolutional().eval()
    images = torch.randn(2, 3, 8, 8)
    run = compiled(model)
    close(run(images), model(images))
    report = nna.torch.report(run)
    (graph,) = report.graphs
    assert (graph.kind, graph.operators, graph.delegated, graph.fallback_operators) == ("inference", 5, 5, ())
    assert report.coverage == report.flops_coverage == 1 and not report.breaks
    assert list(graph.sessions[0].input_shapes) == ["given.arg2_1"]
    assert "test_inference.py" in graph.sessions[0].nodes[0].name  # node names contain lines of source


@torch.no_grad()
def test_new_sizes_are_dynamic_in_one_session():
    model = Convolutional().eval()
    run = compiled(model)
    for size in (2, 3, 4, 5):
        close(run(images := torch.randn(size, 3, 8, 8)), model(images))
    graphs = nna.torch.report(run).graphs
    assert len(graphs) == 2  # the first size is static, and one graph serves the others
    assert graphs[1].sessions[0].plans.served_shapes_text != ""


@torch.no_grad()
def test_constant_results_are_not_counted_as_work():
    def function(x):
        table = torch.arange(6).reshape(2, 3) * 0.5
        return torch.relu(x), table, table.t()

    run, x = compiled(function), torch.randn(3)
    for one, other in zip(run(x), function(x), strict=True):
        close(one, other)
    (graph,) = nna.torch.report(run).graphs
    assert (graph.operators, graph.delegated, graph.fallback_operators) == (1, 1, ())


@torch.no_grad()
def test_changed_weights_are_detected():
    model = nn.Linear(3, 2)
    run, x = compiled(model), torch.randn(4, 3)
    for _ in range(6):
        close(run(x), model(x))
        model.weight.mul_(2)
    assert nna.torch.report(run).graphs[0].unfrozen_weights == 1
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    close(run(x), model(x))
    model.bias.data = torch.ones(2)
    close(run(x), model(x))


@torch.no_grad()
def test_constants_are_no_inputs_of_the_session():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    run = compiled(model)
    run(torch.randn(2, 3))
    (session,) = nna.torch.report(run).graphs[0].sessions
    assert len(session.input_shapes) == 1 and session.weights.total >= (12 + 4 + 8 + 2) * 4


@torch.no_grad()
def test_operators_without_onnx_form_run_in_pytorch():
    def function(x, y):
        product = torch.relu(x @ y)
        return torch.special.bessel_j0(product) + product

    run = compiled(function)
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    close(run(x, y), function(x, y))
    (graph,) = nna.torch.report(run).graphs
    (stayed,) = graph.fallback_operators
    assert stayed.reason == "unsupported_operation" and "has no ONNX form" in stayed.detail
    assert "test_inference.py:" in stayed.line and len(graph.sessions) == 2


@torch.no_grad()
def test_data_dependent_branch_breaks_the_graph():
    def function(x):
        doubled = x * 2
        return doubled + 1 if doubled.sum() > 0 else doubled - 1

    run = compiled(function)
    for x in (torch.ones(3), -torch.ones(3)):
        close(run(x), function(x))
    report = nna.torch.report(run)
    assert len(report.breaks) == 1 and "test_inference.py:" in report.breaks[0].graph_break_line
    assert "1 graph break" in str(report)


@torch.no_grad()
def test_complex_numbers_run_in_pytorch():
    def function(x):
        return torch.fft.fft(x * 2).real + 1

    run, x = compiled(function), torch.randn(4)
    close(run(x), function(x))
    assert {row.reason for row in nna.torch.report(run).graphs[0].fallback_operators} == {"unsupported_dtype"}


@torch.no_grad()
def test_random_numbers_equal_pytorch():
    def function(x):
        return torch.rand(3) + x, nn.functional.dropout(torch.relu(x), 0.5, training=True)

    run, x = compiled(function), torch.ones(3)
    torch.manual_seed(1)
    found, dropped = run(x)
    torch.manual_seed(1)
    close(found, torch.rand(3) + x)
    assert set(dropped.tolist()) <= {0.0, 2.0}


@torch.no_grad()
def test_inputs_are_mutated_as_in_pytorch():
    def function(x, state):
        state.add_(x)
        return state * 2

    run = compiled(function)
    result, expected = torch.ones(3), torch.ones(3)
    for _ in range(3):
        close(run(torch.ones(3), result), function(torch.ones(3), expected))
    close(result, expected)


@torch.no_grad()
def test_results_may_be_views_of_inputs_and_of_results():
    def function(x):
        y = torch.relu(x)
        return x.t(), y, y[1:], y.t(), x

    run, x = compiled(function), torch.randn(3, 4)
    result, expected = run(x), function(x)
    for one, other in zip(result, expected, strict=True):
        close(one, other)
        assert one.stride() == other.stride()
    assert result[0].data_ptr() == x.data_ptr() and result[4] is x
    result[1].zero_()
    assert not result[2].any() and not result[3].any()


@torch.no_grad()
def test_layouts_of_results_equal_pytorch():
    def function(x):
        y = torch.relu(x.t())
        return y, y.view(-1) if y.is_contiguous() else y.t().view(-1)

    run, x = compiled(function), torch.randn(3, 4)
    for one, other in zip(run(x), function(x), strict=True):
        close(one, other)
        assert one.stride() == other.stride()


@torch.no_grad()
def test_tied_weights_none_results_and_several_types():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens, scale):
            return self.head(self.embedding(tokens) * scale), None, {"tokens": tokens + 1}

    model = Tied()
    run, tokens = compiled(model), torch.tensor([[1, 2], [3, 4]])
    for scale in (torch.tensor(2.0), torch.tensor(2, dtype=torch.float64), torch.tensor(3)):
        result, expected = run(tokens, scale), model(tokens, scale)
        close(result[0], expected[0])
        assert result[1] is None and result[0].dtype == expected[0].dtype
        close(result[2]["tokens"], expected[2]["tokens"])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_data_types_pass_through(dtype):
    def function(x, y):
        return torch.where(x == y, x, y), x.reshape(-1)

    x, y = (torch.randint(0, 2, (2, 3)).to(dtype) for _ in range(2))
    run = compiled(function, fallback="allow")
    for one, other in zip(run(x, y), function(x, y), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_concurrent_calls_of_a_module():
    model = Convolutional().eval()
    run, images = compiled(model), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(images)
        run(images)
    found = []

    def work():
        with torch.no_grad():
            found.extend(run(images) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for each in found:
        close(each, expected)


@torch.no_grad()
def test_freed_graphs_are_not_in_reports():
    run = compiled(nn.Linear(3, 2))
    run(torch.randn(4, 3))
    assert len(nna.torch.report(run).graphs) == 1
    torch._dynamo.reset()
    gc.collect()
    assert nna.torch.report(run).graphs == ()


@torch.no_grad()
def test_report_as_text_json_and_html():
    run = compiled(Convolutional().eval())
    assert "nothing is compiled yet" in str(nna.torch.report(run))
    run(torch.randn(2, 3, 8, 8))
    report = nna.torch.report(run)
    text = str(report)
    assert text.startswith("compiled   Convolutional: 1 graph, 0 graph breaks\noperators  5: 5 in sessions")
    assert report.to_dict()["graphs"][0]["sessions"][0]["schema_version"] == 2
    assert '"kind": "inference"' in report.to_json()
    assert report.to_html().count("<iframe") == 1 and "http" not in report.to_html().split("srcdoc")[0]


@torch.no_grad()
def test_refusals_name_operator_and_line():
    def function(x):
        return torch.relu(x) + 1

    run = compiled(function, devices=[("fake_npu", {"switched_off": "RELU"})], fallback="allow")
    x = torch.tensor([1.0, 3.0, -2.0])
    close(run(x), function(x))
    (row,) = nna.torch.report(run).graphs[0].refused_operators
    assert (row.operator, row.device, row.reason) == ("aten.relu.default", "fake_npu", "switched_off")
    assert "test_inference.py:" in row.line


@pytest.mark.sweep
@torch.no_grad()
def test_operator_that_breaks_a_region_runs_in_pytorch(unloadable_determinant):
    def function(x):
        y = torch.relu(x).exp()
        return torch.linalg.det(y * 2) + y.sum()  # ONNX Runtime does not load the model of PyTorch 2.13's exporter

    run, x = compiled(function, fallback="allow"), torch.eye(3)
    close(run(x), function(x))
    close(run(x), function(x))
    (graph,) = nna.torch.report(run).graphs
    assert {(row.operator, row.reason) for row in graph.fallback_operators} == {
        ("aten._linalg_det.default", "compile_failed")
    }
    assert graph.delegated == graph.operators - 1 == 5 and graph.pending_regions == 0
    with pytest.raises(nna.errors.NNAdapterError):
        compiled(function, fallback="forbid")(x)


@torch.no_grad()
def test_report_counts_inputs_outputs_and_copies():
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    for device, copying in (("fake_npu", ("fake_npu",)), ("cpu", ())):
        torch._dynamo.reset()
        run = torch.compile(model, backend=nna.torch.nnadapter, options={"devices": [device]})
        run(x)
        graph = nna.torch.report(run).graphs[-1]
        assert (graph.input_bytes, graph.output_bytes, graph.separate_memory_devices) == (32, 24, copying)
        assert (graph.to_device_bytes, graph.to_host_bytes) == ((32, 24) if copying else (0, 0))
    assert "passes   32 B in and 24 B out in each call, nothing copied" in str(nna.torch.report(run))


@torch.no_grad()
def test_failing_run_raises_the_error_of_pytorch():
    table, run = torch.randn(5, 3), compiled(nn.functional.embedding, fallback="allow")
    close(run(torch.tensor([1, 2]), table), table[1:3])
    with pytest.raises(IndexError, match="index out of range"):
        run(torch.tensor([1, 9]), table)
    close(run(torch.tensor([3, 4]), table), table[3:])
    with pytest.raises(nna.errors.NNAdapterError):
        compiled(nn.functional.embedding, fallback="forbid")(torch.tensor([1, 9]), table)


def test_plain_arrays_and_tensors_share_memory():
    from nnadapter.torch.resident_tensors import to_array, to_tensor

    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        tensor = torch.zeros(3, dtype=dtype, requires_grad=dtype is torch.float32)
        array = to_array(dtype)(tensor)
        assert array.ctypes.data == tensor.data_ptr() == to_tensor(dtype)(array).data_ptr()
        assert to_tensor(dtype)(np.ascontiguousarray(array)).dtype == dtype


@torch.no_grad()
def test_large_weights_and_python_constants():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(100, 64)

        def forward(self, tokens):
            result = self.embedding(tokens)
            return torch.cat([result, torch.tensor([])[None, None].expand(2, 3, 0), result * torch.tensor(2.0)], -1)

    model, tokens = Large(), torch.randint(0, 100, (2, 3))
    run = compiled(model, fallback="forbid")
    gc.collect()
    close(run(tokens), model(tokens))
    assert nna.torch.report(run).graphs[0].sessions[0].weights.total >= 100 * 64 * 4
