"""Which constants are dequantized once, before any run.

DequantizeLinear of weights stays a node: devices and ONNX Runtime make one operation on integers of it and its readers.
Where the device of a reader refuses it, it would run on another device at every run, and hand over the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.planning.judgment import Judgment, answers
from nnadapter.planning.setting import Setting


def to_dequantize(judgment: Judgment, setting: Setting) -> frozenset[int]:
    """Return the positions of nodes in the model that dequantize constants for a device that does not take them.

    A device takes a reader where it is the first that does. Readers that are left to the host do not count.
    """
    specialized, graph = judgment.model.specialized, judgment.model.graph
    device_answers = answers(judgment, setting)

    def takers() -> Iterator[int]:
        for index, node in enumerate(specialized.nodes):
            if node.op_type != "DequantizeLinear" or node.domain:
                continue
            if not all(name in specialized.constants for name in node.inputs if name):
                continue
            own = graph.atom_of[index]
            for reader in graph.consumers.get(node.outputs[0], ()):
                atom = graph.atom_of[reader]
                taker = next((verdicts for verdicts in device_answers if verdicts[atom]), None)
                if taker is not None and not taker[own]:
                    yield specialized.positions[index]

    return frozenset(takers())
