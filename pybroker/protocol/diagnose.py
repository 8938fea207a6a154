"""Finds the field that prevents a message from being encoded; compiled writers leave out these slow checks."""

from struct import Struct as Layout
from struct import error as StructError
from typing import Any

from pybroker.protocol.schema import Field, Struct
from pybroker.protocol.wire import FORMATS, STRING_MAX

_BITS = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}


def fault(struct: Struct, value: object, version: int, where: str) -> str | None:
    """One sentence on the first field of `value` that its definition does not allow; None if all are allowed."""
    for field in struct.fields:
        if not field.exists(version):
            continue
        path = f"{where}.{field.name}"
        if not hasattr(value, field.name):
            return f"{where} is {_shown(value)}, not a {struct.name}"
        found = _field(field, getattr(value, field.name), version, path)
        if found:
            return found
    return None


def _field(field: Field, value: object, version: int, path: str) -> str | None:
    if value is None:
        absent = field.tag is not None and field.struct is not None
        return None if absent or field.nullable(version) else f"{path} is None, which v{version} does not allow"
    if not field.is_array:
        return _value(field, value, version, path)
    if isinstance(value, str | bytes) or not (hasattr(value, "__len__") and hasattr(value, "__iter__")):
        return f"{path} is {_shown(value)}, not a list"
    found = (_value(field, item, version, f"{path}[{index}]") for index, item in enumerate(value))
    return next(filter(None, found), None)


def _value(field: Field, value: Any, version: int, path: str) -> str | None:
    if field.struct:
        return fault(field.struct, value, version, path)
    shown = f"{path} is {_shown(value)}"
    if field.type in _BITS:
        limit = 1 << _BITS[field.type]
        fits = isinstance(value, int) and -limit <= value < limit
        return None if fits else f"{shown}; {field.type} takes an int from {-limit} to {limit - 1}"
    if field.type == "str":
        return _string(value, shown)
    if field.type in ("bytes", "records"):
        try:
            memoryview(value)
        except TypeError:
            return None if hasattr(value, "tobytes") else f"{shown}; {field.type} takes bytes or a memoryview"
        return None
    if field.type == "uuid":
        return None if isinstance(value, bytes) and len(value) == 16 else f"{shown}; uuid takes 16 bytes"
    try:
        Layout(FORMATS[field.type]).pack(value)
    except StructError:
        return f"{shown}; {field.type} takes a number"
    return None


def _string(value: object, shown: str) -> str | None:
    if not isinstance(value, str):
        return f"{shown}; str takes a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{shown}, which cannot be encoded in UTF-8"
    return None if size <= STRING_MAX else f"{shown} of {size} bytes; str takes at most {STRING_MAX}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
