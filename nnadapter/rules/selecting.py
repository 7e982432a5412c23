"""Which nodes of a model a rule means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property

from nnadapter.errors import close_names
from nnadapter.rules.values import Rule
from partition.graph import Graph

_PATTERN = re.compile(r"[*?\[]")


class Selector:
    """Finds the nodes of one model; what several rules need is worked out once.

    A node that stands for one of the model as it was (a node of a function's body) is found by that one's name too.
    """

    def __init__(self, model_graph: Graph) -> None:
        self._own = model_graph

    def select(self, rule: Rule) -> frozenset[int]:
        """Positions of the nodes that match everything which `rule` gives."""
        return frozenset.intersection(*self._matches(rule))

    def why_nothing(self, rule: Rule) -> str:
        """Why `select` finds nothing, as a note."""
        domain, op_type = rule.domain_and_op_type
        if op_type is not None and not self._by_op_type.get((domain, op_type)):
            op_types = [name for of_domain, name in self._by_op_type if of_domain == domain]
            chosen = "; rules find nodes of a chosen branch by the name of their 'If'"
            branch_note = chosen if op_type == "If" else ""
            return f"the model has no op type {rule.op_type!r}; {close_names(op_type, op_types)}{branch_note}"
        for tensor in (name for names in rule.region or () for name in names):
            if tensor not in self._tensors:
                return f"the model has no tensor {tensor!r}"
        if rule.name is not None and not self._named(rule.name):
            if_name = next(filter(rule.name.startswith, self._before_branches), "")[:-1]
            reason = f"; {if_name!r} runs as one, so that its branches have no nodes of their own" if if_name else ""
            return f"no node's name matches {rule.name!r}{reason}"
        if rule.region is not None and not self._between(*rule.region):
            return "no path leads from one end of the region to the other"
        return "no node matches everything that the rule gives"

    def _matches(self, rule: Rule) -> Iterable[frozenset[int]]:
        domain, op_type = rule.domain_and_op_type
        if op_type is not None:
            yield self._by_op_type.get((domain, op_type), frozenset())
        if rule.name is not None:
            yield self._named(rule.name)
        if rule.region is not None:
            yield self._between(*rule.region)

    @cached_property
    def _tensors(self) -> frozenset[str]:
        model_graph = self._own
        return frozenset((*model_graph.inputs, *model_graph.constants, *model_graph.producer))

    @cached_property
    def _by_op_type(self) -> Mapping[tuple[str | None, str], frozenset[int]]:
        positions_by_type: dict[tuple[str | None, str], list[int]] = defaultdict(list)
        for position, node in enumerate(self._own.nodes):
            positions_by_type[node.domain, node.op_type].append(position)
            positions_by_type[None, node.op_type].append(position)
        return {key: frozenset(positions) for key, positions in positions_by_type.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[int, ...]]:
        positions_by_name: dict[str, list[int]] = defaultdict(list)
        for position, node in enumerate(self._own.nodes):
            for name in dict.fromkeys((node.name, *node.origins)):
                positions_by_name[name].append(position)
        return {name: tuple(positions) for name, positions in positions_by_name.items()}

    @cached_property
    def _before_branches(self) -> tuple[str, ...]:
        """What the names of nodes in branches begin with, of each `If` whose branch was not chosen before."""
        return tuple(f"{node.name}/" for node in self._own.nodes if node.op_type == "If" and not node.domain)

    def _named(self, pattern: str) -> frozenset[int]:
        """A node of exactly that name comes before what the pattern may mean: names may hold brackets."""
        exactly = self._by_name.get(pattern)
        if exactly is not None or not _PATTERN.search(pattern):
            return frozenset(exactly or ())
        matches = re.compile(translate(pattern)).match
        return frozenset(at for name, positions in self._by_name.items() if matches(name) for at in positions)

    def _between(self, first: Sequence[str], last: Sequence[str]) -> frozenset[int]:
        nodes, consumers, producer = self._own.nodes, self._own.consumers, self._own.producer
        downstream = _reached(
            (node for name in first for node in consumers.get(name, ())),
            lambda node: (reader for name in nodes[node].outputs for reader in consumers.get(name, ())),
        )
        upstream = _reached(
            (producer[name] for name in last if name in producer),
            lambda node: (producer[name] for name in nodes[node].reads if name in producer),
        )
        return downstream & upstream


def _reached(start: Iterable[int], onward: Callable[[int], Iterable[int]]) -> frozenset[int]:
    waiting = list(start)
    nodes = set(waiting)
    while waiting:
        unvisited = set(onward(waiting.pop())) - nodes
        nodes |= unvisited
        waiting.extend(unvisited)
    return frozenset(nodes)
