"""Placement by cost: the cheapest device for every atom, with a lower bound.

pricing        cost of a placement, or of many at once
latency        candidates, search and bound for the least time of a run, or the least load of the busiest device
search         moves of local search, minimum cuts, and surcharges for launches
minimum_cuts   minimum cut of a graph, whole or window by window
elimination    variables eliminated before a cut
repeats        equal blocks of a graph, solved once
"""
