"""Verdicts and programs of a provider; ONNX Runtime's CPU provider stands in for an accelerator's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from nnadapter.drivers import SUPPORTED, Reason
from nnadapter.drivers.execution_providers import Backing, EpContext
from nnadapter.errors import CompilationError
from nnadapter.onnx import referring
from nnadapter.traces import Recorder
from tests.models import HEAD, numbers, parse, run_whole
from tests.trace_checks import lanes_of, named

PROVIDER = "CPUExecutionProvider"
CHAIN = f"{HEAD} g (float[4] x) => (float[4] y) {{ a = Relu(x) b = Sin(a) c = Cos(b) d = Sin(c) y = Add(d, a) }}"


class Failing(Backing):
    """Backing that fails on Sin and records its sessions."""

    def __init__(self, *, levels=("judge", "compile")):
        super().__init__(provider=PROVIDER)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "opened", [])

    def open(self, model, level=None, profile=None, without=()):
        loaded = onnx.load_from_string(model.contents)
        self.opened.append(loaded)
        fails = any(node.op_type == "Sin" for node in loaded.graph.node)
        if fails and ("compile" if level is None else "judge") in self.levels:
            raise RuntimeError("no memory for Sin")
        return super().open(model, level, profile)


def test_graph_that_the_provider_supports():
    context = EpContext(Backing(provider=PROVIDER))
    model = parse(CHAIN)
    assert list(context.supported(model)) == [SUPPORTED] * 5
    program = context.compile(model)
    x = numbers(4)
    np.testing.assert_allclose(program.create_execution().compute([x])[0], run_whole(model, {"x": x})[0], atol=1e-6)
    assert program.memory_bytes > 0
    assert program.serialize() is None  # the CPU provider has no compiled form


def test_provider_events_are_in_the_trace(tmp_path):
    recorder, x = Recorder(tmp_path / "trace.json"), numbers(4)
    program = EpContext(Backing(provider=PROVIDER)).with_trace(recorder, "ort:CPU").compile(parse(CHAIN))
    program.create_execution().compute([x])
    program.close()
    recorder.finish()
    lane = lanes_of(tmp_path / "trace.json")["ort:CPU"]
    assert len(named(lane, "model_run")) == 1 and [e for e in lane if e["args"].get("op_name") == "Cos"]


def test_failed_compilation_refuses_only_its_culprits():
    verdicts = EpContext(Failing()).supported(parse(CHAIN))
    assert [bool(verdict) for verdict in verdicts] == [True, False, True, False, True]
    assert verdicts[1].reason is Reason.DEVICE_REFUSED and "no memory for Sin" in verdicts[1].detail


def test_graph_is_queried_once():
    backing = Failing(levels=())
    context = EpContext(backing)
    assert context.supported(parse(CHAIN)) == context.supported(parse(CHAIN))
    assert len(backing.opened) == 1
    context.close()
    context.supported(parse(CHAIN))
    assert len(backing.opened) == 2


def test_a_failed_segment_names_its_culprits():
    context = EpContext(Failing())
    with pytest.raises(CompilationError, match="no memory for Sin; check the provider's options") as caught:
        context.compile(parse(CHAIN))
    assert caught.value.refused.keys() == {1, 3}


class Assigned:
    def __init__(self, provider, *names):
        self.ep_name, self._names = provider, names

    def get_nodes(self):
        return [type("Node", (), {"name": name, "op_type": "Op"}) for name in self._names]


class Session:
    def __init__(self, assigned):
        self._assigned = assigned

    def get_inputs(self):
        return ()

    def get_outputs(self):
        return ()

    def get_provider_graph_assignment_info(self):
        return self._assigned


@dataclass(frozen=True, kw_only=True)
class Partial(Backing):
    """Backing that leaves a node to another provider and fails from `most` nodes on."""

    provider: str = PROVIDER
    most: int = 100

    def open(self, model, level=None, profile=None, without=()):
        if len(onnx.load_from_string(model.contents).graph.node) >= self.most:
            raise RuntimeError("it is too much at once")
        assigned = [f"nnadapter:{position}:0" for position in (0, 1, 3, 4)]
        return Session([Assigned(PROVIDER, *assigned), Assigned("Another", "nnadapter:2:0")])


def test_nodes_assigned_to_the_cpu_are_refused():
    verdicts = EpContext(Partial()).supported(parse(CHAIN))
    assert [bool(verdict) for verdict in verdicts] == [True, True, False, True, True]
    with pytest.raises(CompilationError, match="leaves 1 nodes to ONNX Runtime's CPU") as caught:
        EpContext(Partial()).compile(parse(CHAIN))
    assert caught.value.refused.keys() == {2}


def test_all_nodes_are_refused_without_a_culprit():
    verdicts = EpContext(Partial(most=5)).supported(parse(CHAIN))
    assert {verdict.detail for verdict in verdicts} == {f"{PROVIDER} refuses the subgraph: it is too much at once"}


def test_only_ops_unknown_to_onnxruntime_are_refused():
    model = parse(CHAIN)
    model.graph.node[2].op_type = "Frobnicate"
    verdicts = EpContext(Backing(provider=PROVIDER)).supported(model)
    assert [bool(verdict) for verdict in verdicts] == [True, True, False, False, False]
    assert (
        verdicts[2].reason is Reason.UNSUPPORTED_OPERATION
        and "nor ONNX Runtime has an operator 'Frobnicate'" in verdicts[2].detail
    )
    assert all("it depends on a refused Frobnicate" in verdict.detail for verdict in verdicts[3:])


DYNAMIC = f"""{HEAD} g (float[n, 2] x) => (float[m] y) <int64[1] all = {{-1}}> {{
    s = Shape (x) t = Concat <axis = 0> (s, all) a = Reshape (x, all) b = Relu (a) y = Sin (b)
}}"""


@dataclass(frozen=True, kw_only=True)
class Leaves(Backing):
    """Backing that leaves one node to another provider."""

    provider: str = PROVIDER
    position: int = 0

    def open(self, model, level=None, profile=None, without=()):
        count = len(onnx.load_from_string(model.contents).graph.node)
        assigned = [f"nnadapter:{position}:0" for position in range(count) if position != self.position]

        return Session([Assigned(PROVIDER, *assigned), Assigned("Another", f"nnadapter:{self.position}:0")])


@pytest.mark.parametrize(("position", "accepted"), [(0, True), (1, True), (2, False), (4, False)])
def test_size_computations_with_dynamic_shapes_may_run_on_the_cpu(position, accepted):
    context, model = EpContext(Leaves(position=position)), onnx.parser.parse_model(DYNAMIC)
    verdict = context.admit(model).verdict
    assert bool(verdict) == accepted and (accepted or "leaves 1 nodes to ONNX Runtime's CPU" in verdict.detail)
    if accepted:
        context.compile(model)
    else:
        with pytest.raises(CompilationError, match="leaves 1 nodes"):
            context.compile(model)


def test_static_segment_is_not_queried_again():
    backing = Failing(levels=())
    assert EpContext(backing).admit(parse(CHAIN)).verdict and not backing.opened


def test_segment_that_fails_to_compile_with_dynamic_shapes_is_not_admitted():
    verdict = EpContext(Failing()).admit(onnx.parser.parse_model(DYNAMIC)).verdict
    assert not verdict and "no memory for Sin" in verdict.detail


def test_large_weights_are_passed_outside_of_the_model():
    weight = numbers(256, 256)
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[n, 256] x) => (float[n, 256] y) {{ a = MatMul (x, w) y = Relu (a) }}"
    )
    model.graph.initializer.append(referring(onnx.numpy_helper.from_array(weight, "w"), weight))
    context, x = EpContext(Backing(provider=PROVIDER)), numbers(2, 256)
    assert list(context.supported(model)) == [SUPPORTED] * 2 and context.admit(model).verdict
    program = context.compile(model)
    assert program.memory_bytes >= weight.nbytes
    (result,) = program.create_execution().compute([x])
    np.testing.assert_allclose(result, np.maximum(x @ weight, 0), rtol=1e-4, atol=1e-4)
