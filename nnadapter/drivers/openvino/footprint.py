"""What a compiled model of the engine holds: OpenVINO does not say, so by a rule that was measured.

It keeps the constants of the model that it read, and once more in the form that its kernels want; working memory for
one run, where tensors that are not needed any more make room for others; a kernel for each node. Requests share all of
that. The graph that it runs is read from it (`get_runtime_model`), with its data types and, where sizes are open, the
sizes of the last run.

Source: growth of the process by malloc's own count, models of 10 to 530 nodes and 0.5 to 70 MB of weights, OpenVINO
2026.4 on the CPU.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

_BYTES_PER_NODE = 22 << 10
"""A kernel with the code that is made for its sizes."""
_WORKING_MEMORY = 1.2
"""What the engine takes for tensors, of the most that live at one time: it packs channels by 8 or 16."""


class Footprint(NamedTuple):
    """The graph that a compiled model runs, in numbers."""

    nodes: int
    constant_bytes: int
    living_bytes: int
    """Of tensors that are needed at one time, at the most."""

    def held_bytes(self, copied_bytes: int) -> int:
        """Return the bytes that the compiled model holds.

        Args:
            copied_bytes: constants of the model that was read, as far as the engine has a copy of them.
        """
        working = int(_WORKING_MEMORY * self.living_bytes)
        return copied_bytes + self.constant_bytes + working + _BYTES_PER_NODE * self.nodes


def footprint_of(compiled: Any) -> Footprint:
    """Return the footprint of one of the engine's compiled models; an empty one where it does not tell its graph."""
    try:
        operations = compiled.get_runtime_model().get_ordered_ops()
    except Exception:  # noqa: BLE001  not every device of the engine has one
        return Footprint(0, 0, 0)
    input_names = {name for port in compiled.inputs for name in port.get_names()}
    constants = set[str]()
    allocations: dict[str, tuple[int, int]] = {}
    """By the name of an operation, when its tensors are made, and their bytes."""
    last_use: dict[str, int] = {}
    constant_bytes = 0
    for position, operation in enumerate(operations):
        name, nbytes = operation.get_friendly_name(), _bytes(operation)
        sources = [source.get_node().get_friendly_name() for source in operation.input_values()]
        last_use.update(dict.fromkeys(sources, position))
        if operation.get_type_name() == "Result":  # it has the memory of its source
            continue
        if sources and not constants.issuperset(sources):
            allocations[name] = position, nbytes
        elif name not in input_names:  # an operation on constants alone is done once, and takes their place
            constants.add(name)
            constant_bytes += 0 if sources else nbytes
    return Footprint(len(operations), constant_bytes, _most(allocations, last_use, len(operations)))


def _most(allocations: dict[str, tuple[int, int]], last_use: dict[str, int], length: int) -> int:
    changes = [0] * (length + 1)
    for name, (position, nbytes) in allocations.items():
        changes[position] += nbytes
        changes[last_use.get(name, position) + 1] -= nbytes
    return max(accumulate(changes))


def _bytes(operation: Any) -> int:
    """Of its results, where their sizes are known."""
    return sum(
        operation.get_output_tensor(port).size
        for port in range(operation.get_output_size())
        if operation.get_output_partial_shape(port).is_static
    )
