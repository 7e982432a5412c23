"""Which node of a model a device computes wrongly: `compare --layers`.

Nodes are looked at by atoms (nodes that stand for one thing), in one topological order. A border is a place between two
atoms, with every value that is made before it and read behind it. So what is behind depends on nothing else, and a
difference at a border that is not there at the border before came in by the atom between them.

1. Accumulated: a device computes the model from its inputs up to a border. Bisecting finds two neighboring borders of
   which the first agrees with the CPU and the second does not: log2(n) compilations. It needs no monotony: an error
   may vanish on its way (in Relu, ArgMax), but the outputs differ, so there are two such borders.
2. Local: every atom gets the CPU's values. In place of bisecting once more, edges are cut: all atoms stand side by side
   in one model, whose inputs are the CPU's values. One compilation tells the local error of all of them, nothing
   vanishes, and several wrong ones are all found. Values are held for so many atoms at a time as fit in memory.
3. Where no atom explains by itself what was accumulated, the shortest run of atoms up to that border is looked for
   that is wrong on the CPU's values: log2(n) compilations. With all values inside of it asked for, nothing in it can be
   fused; if that agrees, the device is wrong only where it runs these nodes together. Else error grows, and is told so.
4. What is named was computed once more, as a model of its own, which is the one that is saved.

The CPU's values are computed from the nearest border before that is known, so only few borders are held.
"""
