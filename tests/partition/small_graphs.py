"""Graphs for laws: small random ones, and a long chain with branches."""

import random

from hypothesis import strategies as st

from partition import Graph, GraphError, Node


def graph_of(predecessors, outputs=None, atoms=()):
    """Return one node per entry; node i produces `v{i}` and reads its predecessors' outputs, or the input `x`."""
    nodes = tuple(
        Node(f"n{index}", "Sum", "", tuple(f"v{before}" for before in sorted(reads)) or ("x",), (f"v{index}",))
        for index, reads in enumerate(predecessors)
    )
    read = {before for reads in predecessors for before in reads}
    leaves = tuple(f"v{index}" for index in range(len(nodes)) if index not in read)
    return Graph(nodes, {}, frozenset(), ("x",), leaves if outputs is None else outputs, tuple(atoms))


@st.composite
def edges(draw, most=9):
    """Draw the predecessors of every node, all of them earlier nodes."""
    count = draw(st.integers(0, most))
    return [draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set() for index in range(count)]


@st.composite
def placed_graphs(draw, labels="ab", most=9):
    """Draw a graph and a label for every node."""
    graph = graph_of(draw(edges(most)))
    labeled = st.lists(st.sampled_from(labels), min_size=len(graph.nodes), max_size=len(graph.nodes))
    return graph, tuple(draw(labeled))


@st.composite
def grouped_graphs(draw, labels="ab"):
    """Draw like `placed_graphs`, with one atom of two nodes."""
    predecessors = draw(edges())
    atoms = [(index,) for index in range(len(predecessors))]
    pair = draw(st.sampled_from([(a, b) for b in range(len(atoms)) for a in range(b)] or [None]))
    graph = graph_of(predecessors)
    if pair is not None:
        remaining = [atom for atom in atoms if atom[0] not in pair]
        for at in range(len(remaining) + 1):
            try:
                graph = graph_of(predecessors, atoms=(*remaining[:at], pair, *remaining[at:]))
                break
            except GraphError:  # the pair is not convex, or not in order at this position
                continue
    labeled = st.lists(st.sampled_from(labels), min_size=len(graph.atoms), max_size=len(graph.atoms))
    return graph, tuple(draw(labeled))


def long_graph(count, labels="aaab"):
    """Return many branches that rejoin within a few dozen nodes."""
    source = random.Random(count)
    predecessors = [{max(0, index - source.randint(1, 30)) for _ in range(2)} - {index} for index in range(count)]
    return graph_of(predecessors), tuple(source.choice(labels) for _ in range(count))


def fewest_turns(graph, placement, only=None):
    """Return the fewest single-label parts, by breadth-first search over downward-closed sets of atoms.

    Args:
        only: count only parts of this label.
    """
    before = graph.atom_predecessors
    best = {(frozenset(), None): 0}
    waiting = [(frozenset(), None)]
    for done, label in waiting:  # grows; revisits a state that became cheaper
        for atom in range(len(placement)):
            if atom in done or not done.issuperset(before[atom]):
                continue
            state = (done | {atom}, placement[atom])
            cost = best[done, label] + (placement[atom] != label and only in (None, placement[atom]))
            if cost < best.get(state, len(placement) + 1):
                best[state] = cost
                waiting.append(state)
    return min(cost for (done, _), cost in best.items() if len(done) == len(placement))
