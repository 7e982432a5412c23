"""Algorithms of other projects that cut a graph by device support, reimplemented from their sources or called.

Each returns parts of atoms with one label; torch.fx only the supported parts.
"""


def tflite_subsets(graph, placement):
    """Cut as TFLite: the first ready node determines the label; run all ready nodes with it, then switch.

    Source: PartitionGraphIntoIndependentNodeSubsets, tflite/graph_info.cc.
    """
    waiting = [len(before) for before in graph.atom_predecessors]
    after = successors(graph)
    ready = [atom for atom, count in enumerate(waiting) if not count]
    parts = []
    label = placement[0] if placement else None
    while ready:
        queue = [atom for atom in ready if placement[atom] == label]
        ready = [atom for atom in ready if placement[atom] != label]
        for atom in queue:  # grows
            for successor in after[atom]:
                waiting[successor] -= 1
                if not waiting[successor]:
                    (queue if placement[successor] == label else ready).append(successor)
        if queue:
            parts.append(queue)
        label = placement[ready[0]] if ready else None
    return parts


def nnadapter_clusters(graph, placement):
    """Cut as NNAdapter: merge a reader into its producer if the labels are equal and no other path connects them.

    Repeat in topological order until nothing changes; parts are the resulting clusters.

    Source: optimizer/partition_model_into_submodels.cc of Paddle Lite.
    """
    after = [set(each) for each in successors(graph)]
    before = [set(atom_predecessor) for atom_predecessor in graph.atom_predecessors]
    members = {atom: [atom] for atom in range(len(placement))}
    for atom in range(len(placement)):
        changed = atom in members
        while changed:
            changed = False
            for reader in sorted(after[atom]):
                if placement[reader] == placement[atom] and not leads_another_way(atom, reader, before):
                    contract(atom, reader, before, after, members)
                    changed = True
                    break
    return list(members.values())


def leads_another_way(atom, reader, before):
    """Search backward from the other producers of `reader` for a path to `atom`."""
    stack = [each for each in before[reader] if each != atom]
    seen = set(stack)
    while stack:
        for each in before[stack.pop()]:
            if each == atom:
                return True
            if each not in seen:
                seen.add(each)
                stack.append(each)
    return False


def contract(atom, reader, before, after, members):
    members[atom] += members.pop(reader)
    for each in after[reader]:
        before[each].discard(reader)
        before[each].add(atom)
    for each in before[reader] - {atom}:
        after[each].discard(reader)
        after[each].add(atom)
    after[atom] = (after[atom] | after[reader]) - {reader}
    before[atom] |= before[reader] - {atom}
    before[reader] = after[reader] = set()


def torch_fx_partitions(graph, placement, device):
    """Apply torch.fx's CapabilityBasedPartitioner to a module of the same structure; return the parts on `device`."""
    import torch
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    drawn = torch.fx.Graph()
    source = drawn.placeholder("x")
    nodes, position = [], {}
    for atom, before in enumerate(graph.atom_predecessors):
        nodes.append(drawn.call_function(_any, tuple(nodes[each] for each in before) or (source,)))
        position[nodes[-1]] = atom
    read = {each for before in graph.atom_predecessors for each in before}
    drawn.output(tuple(node for atom, node in enumerate(nodes) if atom not in read))

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules, node):
            return node in position and placement[position[node]] == device

    module = torch.fx.GraphModule(torch.nn.Module(), drawn)
    partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
    return [[position[node] for node in part.nodes] for part in partitioner.propose_partitions()]


def _any(*values):
    """Act as the function of every node."""


def successors(graph):
    found = [[] for _ in graph.atoms]
    for atom, before in enumerate(graph.atom_predecessors):
        for each in before:
            found[each].append(atom)
    return found
