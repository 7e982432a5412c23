"""Number of segments compared with other algorithms and with the minimum."""

import importlib.util
import random
from pathlib import Path

import onnx
import onnx.backend.test
import pytest

from nnadapter.onnx import read_graph
from partition import cut
from tests.partition.brute_force import fewest_segments
from tests.partition.generated_graphs import FAMILIES, linked
from tests.partition.peers import nnadapter_clusters, tflite_subsets, torch_fx_partitions
from tests.partition.small_graphs import fewest_turns

LIGHT = sorted((Path(onnx.backend.test.__file__).parent / "data" / "light").glob("*.onnx"))
TORCH = importlib.util.find_spec("torch") is not None


def random_case(seed):
    source = random.Random(seed)
    count, labels = source.randint(1, 12), "abcd"[: 2 + seed % 3]
    share = source.choice((0.1, 0.25, 0.5))
    graph = linked([{before for before in range(at) if source.random() < share} for at in range(count)])
    return graph, tuple(source.choice(labels) for _ in range(count))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seeds", [500, pytest.param(2_000, marks=pytest.mark.slow), pytest.param(6_000, marks=pytest.mark.sweep)]
)
def test_equal_to_exhaustive_search(seeds):
    for seed in range(seeds):
        graph, placement = random_case(seed)
        result = cut(graph, placement)
        assert result.exact, seed
        assert len(result.segments) == fewest_segments(graph, placement), seed


@pytest.mark.parametrize("seed", range(20))
def test_both_exhaustive_searches_agree(seed):
    graph, placement = random_case(3 * seed)
    assert fewest_segments(graph, placement) == fewest_turns(graph, placement)
    assert fewest_segments(graph, placement, "a") == fewest_turns(graph, placement, "a")


def masks(graph, number, seed=0):
    """Yield placements: half of them refuse nodes, half refuse op types."""
    source = random.Random(seed)
    types = sorted({node.op_type for node in graph.nodes})
    for at in range(number):
        share = source.uniform(0.05, 0.5)
        refused = {name for name in types if source.random() < share}
        yield tuple(
            "cpu" if (node.op_type in refused if at % 2 else source.random() < share) else "npu" for node in graph.nodes
        )


def assert_never_more(graph, placement, torch_too):
    found = cut(graph, placement, host="cpu").segments
    on_device = sum(segment.device == "npu" for segment in found)
    for peer in (tflite_subsets, nnadapter_clusters):
        parts = peer(graph, placement)
        assert sorted(atom for part in parts for atom in part) == list(range(len(placement)))
        assert len(found) <= len(parts)
        assert on_device <= sum(placement[part[0]] == "npu" for part in parts)
    if torch_too:
        parts = torch_fx_partitions(graph, placement, "npu")
        assert sorted(atom for part in parts for atom in part) == [
            atom for atom, label in enumerate(placement) if label == "npu"
        ]
        assert on_device <= len(parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_never_more_segments_than_other_partitioners(family):
    graph = FAMILIES[family](60)
    for placement in masks(graph, 6):
        assert_never_more(graph, placement, torch_too=False)


@pytest.mark.skipif(not TORCH, reason="torch is not installed: its partitioner is compared where it is")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_never_more_segments_than_torch_fx(family):
    graph = FAMILIES[family](60)
    for placement in masks(graph, 4):
        assert_never_more(graph, placement, torch_too=True)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_onnx_models_never_get_more_segments(path):
    graph = read_graph(onnx.load(path))
    for placement in masks(graph, 4):
        assert_never_more(graph, placement, torch_too=False)
