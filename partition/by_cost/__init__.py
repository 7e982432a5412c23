"""Placement by cost: the cheapest device for every atom, with a lower bound.

pricing, batches                         what a placement costs
latency, origin                          the way: candidates and what found them, search, bound
throughput                               the least load of the busiest device, for inputs that follow each other
two_devices, several_devices             one minimum cut, or moves that are one each
cuts, minimum_cut, windowed_cut          the cut of a graph, whole or window by window
variable_elimination, pairwise           what eliminates variables before a cut
maximum_flow                             the flow that gives the rest
paths, penalties, returns, search        launches, which no cut can carry: surcharges and local search
blocks, folding, repeats                 blocks that repeat are solved once
"""
