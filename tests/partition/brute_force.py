from itertools import product

import numpy as np

from partition.by_cost.pricing import price


def fewest_segments(graph, placement, only=None):
    """Return the fewest single-label parts that run in sequence, over all orders of the atoms.

    A part ends when the next atom has another label. States are the set of executed atoms, as bits of a number, and the
    last label. Only the fewest parts of each state matter, so every set is expanded once.

    Args:
        only: count only parts of this label.
    """
    before = [sum(1 << atom for atom in predecessors) for predecessors in graph.atom_predecessors]
    layer = {(0, None): 0}
    for _ in placement:
        following = {}
        for (done, label), parts in layer.items():
            for atom, needed in enumerate(before):
                if done >> atom & 1 or needed & ~done:
                    continue
                state = (done | 1 << atom, placement[atom])
                count = parts + (placement[atom] != label and only in (None, placement[atom]))
                following[state] = min(count, following.get(state, count))
        layer = following
    return min(layer.values(), default=0)


def cheapest_cost(graph, prices):
    options = [np.flatnonzero(column).tolist() for column in np.isfinite(prices.run).T]
    labels = prices.devices
    return min(price(graph, prices, [labels[row] for row in rows]) for rows in product(*options))
