"""External converters: those that installed packages bring by entry points `nnadapter.converters`.

An entry point is named as ONNX names schemas, `com.acme.Swish-1`: domain, op type and since_version. Its value names
the function (`package.module:function`), which is called as those of `nnadapter.converters` are. Names alone say which
schema version an opset of the domain means. They are read where a model has an op that nobody here knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nnadapter.errors import FAILURES, describe
from nnadapter.onnx.refusal import Refusal
from nnadapter.process.packages import PlugIn, PlugIns
from partition.graph import Reason

GROUP = "nnadapter.converters"
"""The entry point group."""
ONNX_DOMAIN = "ai.onnx"
ExternalConverter = Callable[[Any, Any], None]
"""A conversion's context, and a node."""


def external_name(domain: str, op_type: str, since_version: int) -> str:
    """The name of the entry point that brings a converter."""
    return f"{domain}.{op_type}-{since_version}"


def external_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return the schema versions of an op that packages convert, ascending; ONNX's own domain is nobody else's."""
    if not domain:
        return ()
    keys = filter(None, map(key_of, EXTERNAL_CONVERTERS.all))
    return tuple(sorted(version for of, name, version in keys if (of, name) == (domain, op_type)))


def external_version(domain: str, op_type: str, opset: float) -> int | None:
    """Return the newest schema version that packages convert and that is at most `opset`; None where there is none."""
    return max((version for version in external_versions(domain, op_type) if version <= opset), default=None)


def provider_text(
    ops: Iterable[tuple[str, str]], devices_of: Callable[[str], Sequence[str]], named: Iterable[str] = ()
) -> str:
    """Return a clause on the first of some ops (domain and op type) that an installed package brings; empty if none is.

    It says which package that is, which devices come with it, and what to do.

    Args:
        ops: domain and op type of each.
        devices_of: the names of the devices that a distribution brings.
        named: the devices that were asked, by name.
    """
    for domain, op_type in ops:
        versions = external_versions(domain, op_type)
        if versions:
            name = external_name(domain, op_type, versions[-1])
            problem, distribution = EXTERNAL_CONVERTERS.problem_of(name), EXTERNAL_CONVERTERS.distribution_of(name)
            if problem:
                return f"converter {problem}"
            devices = devices_of(distribution)
            listed = " or ".join(map(repr, devices))
            brought = f"{distribution} brings {domain}::{op_type}"
            if not devices:
                return f"{brought}, and no device: name one that takes it, as its vendor says"
            if {device_name.partition(":")[0] for device_name in named}.intersection(devices):
                return f"{brought}; {listed} does not take it here"
            return f"{brought} for {listed}: name {'one of these' if devices[1:] else 'it'} first"
    return ""


def key_of(name: str) -> tuple[str, str, int] | None:
    """Domain, op type and since_version by the name of an entry point; None where it is no such name."""
    path, _, version = name.rpartition("-")
    domain, _, op_type = path.rpartition(".")
    if not (domain and op_type and version.isascii() and version.isdecimal() and version[0] != "0"):
        return None
    return domain, op_type, int(version)


def _problem(name: str) -> str:
    if key_of(name) is None:
        return "its name is none of a schema, such as com.acme.Swish-1; its vendor must take another"
    if name.rpartition(".")[0] == ONNX_DOMAIN:
        return "ONNX's own ops are converted by nnadapter alone; its vendor must take a domain of its own"
    return ""


def _checked(value: object, plug_in: PlugIn) -> ExternalConverter:
    if not callable(value):
        raise ValueError(f"{plug_in.target} is {type(value).__name__}, expected a function")

    def convert(context: Any, node: Any) -> None:
        try:
            value(context, node)
        except Refusal:
            raise
        except FAILURES as error:
            detail = f"converter {plug_in.name} of {plug_in.distribution} failed: {describe(error)}; ask its vendor"
            raise Refusal(Reason.DRIVER_ERROR, detail) from error
        operands = context.operand_of
        missing = [name for name in node.outputs if name and not (name in operands or context.is_constant(name))]
        if missing:
            detail = (
                f"converter {plug_in.name} of {plug_in.distribution} adds nothing that makes {missing}; ask its vendor"
            )
            raise Refusal(Reason.DRIVER_ERROR, detail)

    return convert


EXTERNAL_CONVERTERS: PlugIns[ExternalConverter] = PlugIns(GROUP, _checked, _problem)
"""Converters from outside."""
