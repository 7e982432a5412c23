"""What is said of an op that no device takes and ONNX Runtime does not know: who brings it, and for which devices."""

from __future__ import annotations

from collections.abc import Iterable

from nnadapter.drivers.registry import sources
from nnadapter.onnx.brought_converters import BROUGHT, brought_name, brought_versions


def bringing(ops: Iterable[tuple[str, str]], named: Iterable[str] = ()) -> str:
    """Return a clause on the first of some ops (domain and op type) that an installed package brings; empty if none is.

    It says which package that is, which devices come with it, and what to do.

    Args:
        ops: domain and op type of each.
        named: the devices that were asked, by name.
    """
    asked = frozenset(name.partition(":")[0] for name in named)
    for domain, op_type in ops:
        versions = brought_versions(domain, op_type)
        if versions:
            return _said(domain, op_type, brought_name(domain, op_type, versions[-1]), asked)
    return ""


def _said(domain: str, op_type: str, name: str, asked: frozenset[str]) -> str:
    problem, distribution = BROUGHT.problem_of(name), BROUGHT.distribution_of(name)
    if problem:
        return f"converter {problem}"
    devices = [device for device, source in sources().items() if source.distribution == distribution]
    if asked.intersection(devices):
        return f"{distribution} brings {domain}::{op_type}; {' or '.join(map(repr, devices))} does not take it here"
    named = " or ".join(map(repr, devices))
    if not named:
        return f"{distribution} brings {domain}::{op_type}, and no device: name one that takes it, as its vendor says"
    return (
        f"{distribution} brings {domain}::{op_type} for {named}: name {'one of these' if devices[1:] else 'it'} first"
    )
