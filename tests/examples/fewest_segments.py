"""The smallest number of segments for two devices, found without the partitioner."""


def fewest_segments(graph, device_of):
    """Return the minimum: alternate the devices, each running all ready nodes, from both starting devices."""
    producers = [{graph.producer[name] for name in node.reads if name in graph.producer} for node in graph.nodes]
    devices = sorted(set(device_of))
    return min(_drain(producers, device_of, devices[start:] + devices[:start]) for start in range(len(devices)))


def _drain(producers, device_of, order):
    waiting, done, turns, segments = set(range(len(producers))), set(), 0, 0
    while waiting:
        device = order[turns % len(order)]
        ran = False
        while ready := {node for node in waiting if device_of[node] == device and producers[node] <= done}:
            done |= ready
            waiting -= ready
            ran = True
        turns, segments = turns + 1, segments + ran
    return segments
