"""Operator schemas, external converters, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from math import inf
from types import MappingProxyType
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from nnadapter.errors import FAILURES, describe
from nnadapter.process.packages import PlugIn, PlugIns
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass
from partition.graph import Reason, Unsupported


class Refusal(Exception):  # noqa: N818  a verdict, not an error
    """Exception by which a converter refuses its node; callers turn it into a verdict."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Unsupported(reason, detail)


GROUP = "nnadapter.converters"
ONNX_DOMAIN = "ai.onnx"
ExternalConverter = Callable[[Any, Any], None]


def external_name(domain: str, op_type: str, since_version: int) -> str:
    """Return the entry point name of an external converter."""
    return f"{domain}.{op_type}-{since_version}"


def external_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return versions of an op with external converters, ascending; none in ONNX's domain."""
    if not domain:
        return ()
    keys = filter(None, map(key_of, EXTERNAL_CONVERTERS.all))
    return tuple(sorted(version for of, name, version in keys if (of, name) == (domain, op_type)))


def external_version(domain: str, op_type: str, opset: float) -> int | None:
    """Return the newest version, up to `opset`, with an external converter."""
    return max((version for version in external_versions(domain, op_type) if version <= opset), default=None)


def provider_text(
    ops: Iterable[tuple[str, str]], devices_of: Callable[[str], Sequence[str]], named: Iterable[str] = ()
) -> str:
    """Return a clause about the first of `ops` with an installed external converter; empty if none.

    The clause names package, devices and remedy. `devices_of` maps a distribution to its devices. `named` are devices
    that the user requested.
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
            brought = f"{distribution} provides {domain}::{op_type}"
            if not devices:
                return f"{brought}, but no device for it: name one that supports it, see its vendor's documentation"
            if {device_name.partition(":")[0] for device_name in named}.intersection(devices):
                return f"{brought}; {listed} does not support it here"
            return f"{brought} for {listed}: name {'one of these' if devices[1:] else 'it'} first"
    return ""


def key_of(name: str) -> tuple[str, str, int] | None:
    """Return domain, op type and version in a converter's entry point name; None if malformed."""
    path, _, version = name.rpartition("-")
    domain, _, op_type = path.rpartition(".")
    if not (domain and op_type and version.isascii() and version.isdecimal() and version[0] != "0"):
        return None
    return domain, op_type, int(version)


def _problem(name: str) -> str:
    if key_of(name) is None:
        return "its name is not DOMAIN.OP_TYPE-VERSION, such as com.acme.Swish-1; its vendor must rename it"
    if name.rpartition(".")[0] == ONNX_DOMAIN:
        return "only nnadapter converts ONNX's own ops; its vendor must use another domain"
    return ""


def _checked(value: object, plug_in: PlugIn) -> ExternalConverter:
    if not callable(value):
        raise ValueError(f"converter {plug_in.target} is {type(value).__name__}, expected a function")

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
                f"converter {plug_in.name} of {plug_in.distribution} adds no operation that produces {missing}; ask "
                "its vendor"
            )
            raise Refusal(Reason.DRIVER_ERROR, detail)

    return convert


EXTERNAL_CONVERTERS: PlugIns[ExternalConverter] = PlugIns(GROUP, _checked, _problem)


def value_of_attribute(attribute: onnx.AttributeProto) -> object:
    """Return an attribute's value as int, float, str, tuple or array; graphs stay messages."""
    read = _READERS.get(attribute.type)
    return read(attribute) if read else onnx.helper.get_attribute_value(attribute)


_READERS: Mapping[int, Callable[[onnx.AttributeProto], object]] = {
    onnx.AttributeProto.INT: lambda attribute: int(attribute.i),
    onnx.AttributeProto.FLOAT: lambda attribute: float(attribute.f),
    onnx.AttributeProto.STRING: lambda attribute: attribute.s.decode("utf-8", "replace"),
    onnx.AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    onnx.AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    onnx.AttributeProto.STRINGS: lambda attribute: tuple(item.decode("utf-8", "replace") for item in attribute.strings),
    onnx.AttributeProto.TENSOR: lambda attribute: onnx.numpy_helper.to_array(attribute.t),
    onnx.AttributeProto.TENSORS: lambda attribute: tuple(map(onnx.numpy_helper.to_array, attribute.tensors)),
}


MICROSOFT = "com.microsoft"
_FAMILIES = {"": "nnadapter.onnx.microsoft", MICROSOFT: "nnadapter.onnx.microsoft"}
"""Domain -> package that registers its schemas. ONNX's domain is included for ONNX Runtime's extensions."""
_ATTRIBUTE_TYPES: Mapping[Any, int] = {
    int: onnx.AttributeProto.INT,
    float: onnx.AttributeProto.FLOAT,
    str: onnx.AttributeProto.STRING,
    list[int]: onnx.AttributeProto.INTS,
    list[float]: onnx.AttributeProto.FLOATS,
    list[str]: onnx.AttributeProto.STRINGS,
}
_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FurtherSchema:
    """Schema of an op that onnx lacks."""

    domain: str
    op_type: str
    since_version: int
    inputs: tuple[str, ...]
    """`?` marks an optional input, `...` a variadic last one."""
    outputs: tuple[str, ...]
    """Marked like `inputs`."""
    types: Mapping[str, int]
    """Attribute name -> `AttributeProto.AttributeType`."""
    defaults: Mapping[str, object]
    required: tuple[str, ...]


_SCHEMAS: dict[tuple[str, str], FurtherSchema] = {}


def add_schema(
    op_type: str,
    inputs: str,
    outputs: str,
    attributes: Mapping[str, object] = MappingProxyType({}),
    *,
    required: Sequence[str] = (),
    domain: str = MICROSOFT,
) -> None:
    """Register an op's schema.

    `inputs` and `outputs` are space-separated, as in `FurtherSchema.inputs`. `attributes` map names to defaults, or to
    types: int, float, str, or lists of these.
    """
    stated = {name: value if _is_type(value) else type(value) for name, value in attributes.items()}
    _SCHEMAS[domain, op_type] = FurtherSchema(
        domain=domain,
        op_type=op_type,
        since_version=1,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        types={name: _ATTRIBUTE_TYPES[type_] for name, type_ in stated.items()},
        defaults={name: value for name, value in attributes.items() if not _is_type(value)},
        required=tuple(required),
    )


def _is_type(value: object) -> bool:
    return value in _ATTRIBUTE_TYPES


def further_schema(domain: str, op_type: str) -> FurtherSchema | None:
    """Return the schema that nnadapter adds for an op, or None."""
    family = _FAMILIES.get(domain)
    if family is not None:
        import_module(family)
    return _SCHEMAS.get((domain, op_type))


def further_schemas(domain: str) -> Mapping[str, FurtherSchema]:
    """Return a domain's additional schemas by op type."""
    further_schema(domain, "")
    return {op_type: schema for (of, op_type), schema in sorted(_SCHEMAS.items()) if of == domain}


def bounds_of(names: Sequence[str]) -> tuple[int, int]:
    """Return the least and greatest number of inputs or outputs in a schema."""
    present = [position for position, name in enumerate(names) if not name.endswith("?")]
    unbounded = bool(names) and names[-1].endswith("...")
    return (present[-1] + 1 if present else 0), (_UNBOUNDED if unbounded else len(names))


_LARGEST_OPSET = (1 << 31) - 1


@memoize(4096)
def since_version(domain: str, op_type: str, opset: int) -> int | None:
    """Return an op's schema version in `opset`."""
    plain = "" if domain == ONNX_DOMAIN else domain
    if not 0 <= opset <= _LARGEST_OPSET:
        return None
    try:
        return int(onnx.defs.get_schema(op_type, opset, plain).since_version)
    except onnx.defs.SchemaError:
        return _further_version(plain, op_type, opset)


@memoize(4096)
def newest_since_version(domain: str, op_type: str) -> int | None:
    """Return the newest known schema version of an op."""
    try:
        return int(onnx.defs.get_schema(op_type, domain).since_version)
    except onnx.defs.SchemaError:
        return _further_version(domain, op_type)


def _further_version(domain: str, op_type: str, opset: float = inf) -> int | None:
    schema = further_schema(domain, op_type)
    if schema is None:
        return external_version(domain, op_type, opset)
    return None if schema.since_version > opset else schema.since_version


@memoize(4096)
def is_further(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether an op's version has a schema that onnx lacks; version 0 has none."""
    if not since_version:
        return False
    try:
        onnx.defs.get_schema(op_type, since_version, domain)
    except onnx.defs.SchemaError:
        return (
            further_schema(domain, op_type) is not None
            or external_version(domain, op_type, since_version) == since_version
        )
    return False


def is_external(domain: str, op_type: str, since_version: int) -> bool:
    """Return whether only an external converter supports an op's version."""
    is_standard = not (domain and since_version and is_further(domain, op_type, since_version))
    return not is_standard and further_schema(domain, op_type) is None


@memoize(4096)
def schema_defaults(domain: str, op_type: str, since_version: int) -> Mapping[str, object]:
    """Return the default attributes of an op's version, none without schema."""
    if not since_version:
        return MappingProxyType({})
    if is_further(domain, op_type, since_version):
        further = further_schema(domain, op_type)
        return MappingProxyType({} if further is None else dict(further.defaults))
    schema = onnx.defs.get_schema(op_type, since_version, domain)
    stated = {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.type
    }
    return MappingProxyType({name: value_of_attribute(value) for name, value in stated.items()})


@memoize(4096)
def data_type_name(code: int) -> str:
    """Return the numpy name of an element type code."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, TypeError, ValueError):
        return f"TensorProto.DataType({code})"
