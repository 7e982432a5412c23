"""Placement by cost: a cheap device for every atom, with a lower bound.

pricing        cost of a placement, or of many at once
latency        candidates, search and bound for the shortest run, or the smallest load of the busiest device
search         local search, minimum cuts with launch costs, and bounds
minimum_cuts   minimum s-t cuts, of an entire graph or window by window
elimination    variable elimination before a cut
repeats        placement of a graph with few of its repeated blocks
"""
