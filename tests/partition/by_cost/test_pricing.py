from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partition import SUPPORTED, Graph, GraphError, Node, cut, make_plan
from partition.by_cost.pricing import Prices, penalized, price, price_many, price_segments, topology_of
from tests.partition.generated_graphs import random_prices
from tests.partition.small_graphs import graph_of, grouped_graphs, placed_graphs


def by_hand(graph, prices, placement, found):
    """Sum up the seconds of every step of the plan, value by value."""
    verdicts = {device: [SUPPORTED] * len(graph.atoms) for device in prices.devices}
    plan = make_plan(graph, prices.devices, verdicts, placement, found.segments, exact=found.exact)
    column = {name: at for at, name in enumerate(prices.values)}
    again = np.full_like(prices.transfer_in, np.inf) if prices.resident_read is None else prices.resident_read
    made_on = {name: step.device for step in plan.steps for name in step.outputs}
    lies = set()
    """Values and the devices on which they are resident."""
    for step in plan.steps:
        row = prices.devices.index(step.device)
        run = sum(prices.run[row, atom] for atom in {graph.atom_of[node] for node in step.nodes})
        into = out = 0.0
        for name in step.inputs:
            stays = np.isfinite(again[row, column[name]])
            into += again[row, column[name]] if (name, row) in lies else prices.transfer_in[row, column[name]]
            lies.update({(name, row)} if stays else ())
        for name in step.outputs:
            stays = np.isfinite(again[row, column[name]])
            readers = {later.device for later in plan.steps if later is not step and name in later.inputs}
            is_kept = stays and name not in graph.outputs and readers <= {made_on[name]}
            out += again[row, column[name]] if is_kept else prices.transfer_out[row, column[name]]
            lies.update({(name, row)} if stays else ())
        yield run, prices.launch[row], into, out


def of(graph, seed, labels):
    return random_prices(graph, seed, devices=tuple(labels), supported=1.0)


def assert_priced(graph, prices, placement):
    expected = np.array(list(by_hand(graph, prices, placement, cut(graph, placement, host=prices.host))))
    assert price(graph, prices, placement) == pytest.approx(expected.sum())
    parts = [
        (part.run, part.launch, part.transfer_in, part.transfer_out)
        for part in price_segments(graph, prices, placement)
    ]
    np.testing.assert_allclose(np.array(parts).reshape(-1, 4), expected.reshape(-1, 4))


@pytest.mark.slow
@given(placed_graphs(labels="abc", most=8), st.integers(0, 1000))
def test_price_of_three_devices_equals_the_plan(case, seed):
    graph, placement = case
    assert_priced(graph, of(graph, seed, "abc"), placement)


@pytest.mark.slow
@given(grouped_graphs(), st.integers(0, 1000), st.sampled_from(["a", "b", "elsewhere"]))
def test_atoms_of_several_nodes_and_any_host(case, seed, host):
    graph, placement = case
    assert_priced(graph, replace(of(graph, seed, "ab"), host=host), placement)


def staying(prices, seed):
    """Return prices of devices on which most values remain resident."""
    generator = np.random.default_rng(seed)
    again = prices.transfer_in * generator.random(prices.transfer_in.shape) * 0.2
    return replace(prices, resident_read=np.where(generator.random(again.shape) < 0.7, again, np.inf))


@given(placed_graphs(labels="abc", most=8), st.integers(0, 1000))
def test_resident_values(case, seed):
    graph, placement = case
    assert_priced(graph, staying(of(graph, seed, "abc"), seed), placement)


@pytest.mark.slow
@given(grouped_graphs(), st.integers(0, 1000), st.sampled_from(["a", "b", "elsewhere"]))
def test_many_placements_with_device_resident_values(case, seed, host):
    graph, _ = case
    prices = replace(staying(random_prices(graph, seed, devices=("a", "b"), supported=1.0), seed), host=host)
    rows = np.random.default_rng(seed).integers(0, 2, (len(graph.atoms), 9)).astype(np.int8)
    expected = [price(graph, prices, [prices.devices[row] for row in column]) for column in rows.T]
    np.testing.assert_allclose(price_many(graph, prices, rows), expected)


@pytest.mark.slow
@given(grouped_graphs(), st.integers(0, 1000), st.sampled_from(["a", "b", "elsewhere"]))
def test_many_placements_are_priced_at_once(case, seed, host):
    graph, _ = case
    prices = replace(random_prices(graph, seed, devices=("a", "b"), forbidden=0.1), host=host)
    rows = np.random.default_rng(seed).integers(0, 2, (len(graph.atoms), 9)).astype(np.int8)
    expected = [price(graph, prices, [prices.devices[row] for row in column]) for column in rows.T]
    np.testing.assert_allclose(price_many(graph, prices, rows), expected)


@pytest.mark.slow
@given(placed_graphs(), st.integers(0, 1000))
def test_penalty_exceeds_every_feasible_placement(case, seed):
    graph, placement = case
    prices = random_prices(graph, seed, devices=("a", "b"), supported=1.0, forbidden=0.2)
    soft = penalized(graph, prices)
    true, raised = (price(graph, each, placement) for each in (prices, soft))
    assert raised == true if np.isfinite(true) else raised > price(graph, soft, ["b"] * len(graph.atoms))


EXAMPLE = Graph(
    (
        Node("p", "A", "", ("x", "w"), ("a", "")),
        Node("q", "B", "", ("a", "a"), ("b",)),
        Node("r", "C", "", ("x",), ("c",)),
    ),
    {},
    frozenset({"w"}),
    ("x", "unread"),
    ("b", "x", "a"),
)


def numbers(**changed):
    given = {
        "devices": ("npu", "cpu"),
        "host": "cpu",
        "run": np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]),
        "transfer_in": np.array([[0.1, 0.2, 0.3, 0.4], [0.0] * 4]),
        "transfer_out": np.array([[0.01, 0.02, 0.03, 0.04], [0.0] * 4]),
        "launch": np.array([100.0, 0.0]),
        "values": ("x", "a", "b", "c"),
    }
    return Prices(**{**given, **changed})


def test_constants_and_unread_values_cost_nothing():
    assert topology_of(EXAMPLE).values == ("x", "a", "b", "c")
    (one,) = price_segments(EXAMPLE, numbers(), ["npu"] * 3)
    assert (one.device, one.run, one.launch) == ("npu", 6.0, 100.0)
    assert (one.transfer_in, one.transfer_out) == pytest.approx((0.1, 0.02 + 0.03))
    assert one.total == pytest.approx(106.15)


def test_columns_in_any_order():
    order = [2, 0, 3, 1]
    prices = numbers()
    values = tuple(prices.values[at] for at in order)
    other = replace(
        prices, values=values, transfer_in=prices.transfer_in[:, order], transfer_out=prices.transfer_out[:, order]
    )
    for placement in (["npu", "cpu", "npu"], ["cpu", "npu", "cpu"]):
        assert price(EXAMPLE, other, placement) == price(EXAMPLE, prices, placement)


def test_empty_graph():
    graph = graph_of([])
    assert price(graph, of(graph, 0, "ab"), ()) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": np.zeros((1, 3))}, r"'run' of prices is float64\[1, 3\], expected float64\[2, 3\]"),
        ({"transfer_in": np.zeros((2, 4), np.float32)}, r"'transfer_in' of prices is float32\[2, 4\]"),
        ({"launch": np.array([1.0, np.nan])}, r"'launch' of prices has nan at \[1\]"),
        ({"transfer_out": np.full((2, 4), -1.0)}, r"'transfer_out' of prices has -1.0 at \[0, 0\]"),
        ({"launch": np.array([np.inf, 0.0])}, "launch on 'npu' costs infinitely much"),
        ({"values": ("x", "a", "b", "b")}, "name the value 'b' twice"),
        ({"devices": ("cpu", "cpu")}, "name the device 'cpu' twice"),
    ],
)
def test_wrong_numbers(changed, message):
    with pytest.raises(GraphError, match=message):
        numbers(**changed)


@pytest.mark.parametrize(
    ("prices", "placement", "message"),
    [
        (numbers(), ["tpu", "cpu", "cpu"], r"no prices for the device 'tpu', only for \['npu', 'cpu'\]"),
        (numbers(values=("x", "a", "b", "d")), ["cpu"] * 3, "no column for the value 'c'"),
        (numbers(run=np.zeros((2, 2))), ["cpu"] * 3, "for 2 atoms, and the graph has 3"),
    ],
)
def test_prices_of_another_graph(prices, placement, message):
    with pytest.raises(GraphError, match=message):
        price(EXAMPLE, prices, placement)


def test_incomplete_segments_are_refused():
    with pytest.raises(GraphError, match="atom 2 is in no segment"):
        price(EXAMPLE, numbers(), ["cpu"] * 3, cut(graph_of([set(), {0}]), ["cpu"] * 2).segments)
