"""Whole plans in a cache: the next session loads one, and neither reads, judges, cuts nor converts its model.

An entry is a compiled model whose programs are those of the segments' entries beside it, and which holds nothing for a
device that fails: then, and at shapes that it does not serve, the session goes on with the model itself. docs/cache.md

sources   what a session is made of, by every byte of it
settings  devices, options and versions: what else decides a plan
links     parts of an entry that lie in other entries
writing   plans of a session -> an entry, with those that were in it
fresh     a session that writes what it plans
engine    a session that runs what was kept
opening   which of the two
asking    whether it is one of them
looking   what there is, for a person
"""
