"""Random message edits, as an attacker makes who can recompute checksums."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

_NUMBERS = (0, 1, -1, 2, 3, 7, 299, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))
_VALUES = {
    FieldDescriptor.TYPE_INT64: _NUMBERS,
    FieldDescriptor.TYPE_INT32: tuple(each for each in _NUMBERS if -(2**31) <= each < 2**31),
    FieldDescriptor.TYPE_UINT32: tuple(each for each in _NUMBERS if 0 <= each < 2**32),
    FieldDescriptor.TYPE_UINT64: tuple(each for each in _NUMBERS if each >= 0),
    FieldDescriptor.TYPE_SINT32: tuple(each for each in _NUMBERS if -(2**31) <= each < 2**31),
    FieldDescriptor.TYPE_SINT64: _NUMBERS,
    FieldDescriptor.TYPE_FIXED32: (0, 1, 2**32 - 1),
    FieldDescriptor.TYPE_DOUBLE: (0.0, 0.5, -1.0, 1e300, float("nan"), float("inf")),
    FieldDescriptor.TYPE_FLOAT: (0.0, 0.5, -1.0, float("nan"), float("inf")),
    FieldDescriptor.TYPE_BOOL: (True, False),
    FieldDescriptor.TYPE_ENUM: (0, 1),
    FieldDescriptor.TYPE_BYTES: (b"", b"\0", b"x" * 5000),
}
_WORDS = (
    *("", "x", "y", "z", "nothing", "cpu", "null", "ir", "onnx", "pickle", "../../secret", "\0", "w" * 5000),
    *("float32", "int64", "string", "object", "O", "bfloat16", "int4", "ExpandElimination"),
    *("sequence(float32)", "optional(tensor", "sequence(" * 50),
)


def _fields(message):
    """Yield every nested message with each of its fields."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            value = getattr(message, field.name)
            if not hasattr(value, "DESCRIPTOR"):
                for each in value:
                    yield from _fields(each)
            elif message.HasField(field.name):
                yield from _fields(value)


def _value(random, field):
    return random.choice(_WORDS if field.type == FieldDescriptor.TYPE_STRING else _VALUES[field.type])


def _is_many(message, field):
    value = getattr(message, field.name)
    return not isinstance(value, (str, bytes)) and hasattr(value, "__len__")


def forge(random, message):
    """Change one thing in a message; return a description."""
    where, field = random.choice(list(_fields(message)))
    name = f"{where.DESCRIPTOR.name}.{field.name}"
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        where.ClearField(field.name)
        return f"{name} is empty"
    if _is_many(where, field):
        return _forge_many(random, where, field, name)
    if inner is not None:
        if where.HasField(field.name):
            where.ClearField(field.name)
            return f"{name} is not set"
        getattr(where, field.name).SetInParent()
        return f"{name} is set"
    value = _value(random, field)
    setattr(where, field.name, value)
    return f"{name} = {str(value)[:30]!r}"


def _forge_many(random, where, field, name):
    rows, how = getattr(where, field.name), random.randrange(5)
    if not rows or how == 0:
        if field.message_type is not None:
            rows.add()
        else:
            rows.append(_value(random, field))
        return f"{name} has one more"
    at = random.randrange(len(rows))
    if how == 1:
        del rows[at]
        return f"{name}[{at}] is gone"
    if how == 2:
        rows.extend([rows[at]])
        return f"{name}[{at}] stands there twice"
    if how == 3:
        other = random.randrange(len(rows))
        order = list(rows)
        order[at], order[other] = order[other], order[at]
        copies = [_copy(each) for each in order]
        del rows[:]
        rows.extend(copies)
        return f"{name}[{at}] and [{other}] change places"
    if field.message_type is not None:
        rows[at].Clear()
        return f"{name}[{at}] is empty"
    rows[at] = _value(random, field)
    return f"{name}[{at}] = {str(rows[at])[:30]!r}"


def _copy(each):
    if not hasattr(each, "DESCRIPTOR"):
        return each
    copy = type(each)()
    copy.CopyFrom(each)
    return copy
