"""A maximum flow, and the minimum cut that it leaves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partition.by_cost.pairwise import PairwiseCosts
from partition.graph import GraphError
from partition.topology import Flags, Indices, Seconds

_INFINITE = 1 << 30
"""Stands for a capacity without bound. Flows are at most half of it, so a residual capacity stays within 31 bits."""
_WHOLE = 1 << 29
"""What all edges at the source, or all at the sink, may carry together: no flow is larger."""
_LEAST = 1e-100
"""Seconds below which a flow is left out: zero, and what does not scale."""


def flow_module() -> ModuleType:
    """Return scipy's module of graph algorithms.

    Raises:
        GraphError: scipy is not installed.
    """
    try:
        from scipy.sparse import csgraph
    except ImportError:
        raise GraphError(
            "placement by latency needs scipy, which is not installed; install it: pip install 'nnadapter[latency]'"
        ) from None
    module: ModuleType = csgraph
    return module


def square(values: NDArray[Any], rows: Indices, columns: Indices, count: int) -> Any:
    """Return scipy's sparse matrix of `count` rows and columns; values of the same place are added up.

    Places are of 32 bits: before 1.15 its graph algorithms take no others, and some only print that they failed.
    """
    from scipy import sparse

    return sparse.csr_array((values, (rows.astype(np.int32), columns.astype(np.int32))), (count, count))


def flow_cut(costs: PairwiseCosts, above: float) -> tuple[Flags, float]:
    """Return which vertices have the value 1 where `costs` are least, and a lower bound of them, in seconds.

    Of several cheapest cuts, the one with fewest vertices of value 1 is found.

    The bound: capacities are rounded down, so no cut of the rounded network is worth more than the same cut of the real
    one, and the least of the former is at most the least of the latter. An edge of `above` and more is one without
    bound: it leads from a vertex that is not forced to another, and the cut with all of those on one side does not cut
    it, so a minimum cut never does.

    Args:
        costs: none is negative; edges may be given several times.
        above: what costs as much or more is not paid in a minimum cut.
    """
    count = costs.vertex.shape[1]
    if not count:
        return np.zeros(0, np.bool_), 0.0
    csgraph = flow_module()
    least = costs.vertex.min(axis=0)
    more = costs.vertex - least
    ends, ones, zeros = np.arange(count) + 2, np.ones(count, np.int64), np.zeros(count, np.int64)
    tail = np.concatenate([costs.second + 2, costs.first + 2, ends, ones])
    head = np.concatenate([costs.first + 2, costs.second + 2, zeros, ends])
    capacity = np.concatenate([*costs.edge, more[1], more[0]])
    is_positive = capacity > 0
    key, inverse = np.unique(tail[is_positive] * (count + 2) + head[is_positive], return_inverse=True)
    summed = np.bincount(inverse, capacity[is_positive], len(key)).astype(np.float64)
    summed[summed >= above] = np.inf
    rounded, scale = _whole(summed, min(float(more[0].sum()), float(more[1].sum())))
    network = square(rounded, *np.divmod(key, count + 2), count + 2)
    value = 0.0
    if np.isfinite(scale):
        result = csgraph.maximum_flow(network, 1, 0, method="dinic")
        value = float(result.flow_value) / scale
        network = network - result.flow
        network.data[network.data < 0] = 0
        network.eliminate_zeros()
    reached = csgraph.breadth_first_order(network, 1, return_predecessors=False)
    side = np.zeros(count + 2, np.bool_)
    side[reached] = True
    return side[2:], float(least.sum()) + value


def _whole(capacity: Seconds, most: float) -> tuple[NDArray[np.int32], float]:
    """Return capacities as whole numbers, and how many of them a second has; infinitely many where nothing can flow."""
    if most < _LEAST:
        return np.ones(len(capacity), np.int32), float("inf")
    scale = _WHOLE / most
    rounded = np.floor(np.minimum(capacity, 2 * most) * scale)  # more than can flow, so such an edge is never full
    rounded[np.isinf(capacity)] = _INFINITE
    return rounded.astype(np.int32), scale
