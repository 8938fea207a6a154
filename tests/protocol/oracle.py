"""kafka-python as the oracle: an independent codec that is made from Kafka's JSON definitions.

Tests import `kafka` from here, so that its import warnings are silenced wherever a run begins.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import uuid
import warnings
from typing import Any

from pybroker.protocol.schema import OUR_TAGS, Struct

__all__ = ["CLIENTS", "THEIRS", "decode", "differences", "encode", "kafka"]

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # from reading its own resources
    import kafka.codec
    import kafka.protocol
    import kafka.record.default_records
    from kafka.protocol.api_data import ApiData
    from kafka.protocol.api_header import ResponseClassRegistry
    from kafka.protocol.api_message import ApiMessage

    def _theirs() -> dict[str, Any]:
        found = {}
        for info in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
            if ".old" not in info.name and "generate" not in info.name:
                for value in vars(importlib.import_module(info.name)).values():
                    if inspect.isclass(value) and issubclass(value, ApiMessage | ApiData) and hasattr(value, "_json"):
                        found[value.name] = value
        return found

    def _unpatched(kind: Any) -> Any:
        """The class as Kafka's JSON has it, without kafka-python's own field names, types and guess at ApiVersions.

        Its table of response classes is restored, for the clients in this process.
        """
        if not {"json_patch", "decode"} & vars(kind).keys():
            return kind
        table = ResponseClassRegistry._response_class_registry
        before = dict(table)
        fresh = type(ApiMessage)(kind.__name__, (ApiMessage,), {})
        table.update(before)
        return fresh

    CLIENTS = _theirs()
    """kafka-python's classes by name, as its client uses them."""

    THEIRS = {name: _unpatched(kind) for name, kind in CLIENTS.items()}
    """kafka-python's classes by name, with exactly Kafka's schemas."""


def encode(kind: Any, message: Any, version: int) -> bytes:
    """Encode our message with their codec, without a header."""
    return bytes(_build(kind, kind._struct, message, version).encode(version=version, header=False))


def decode(kind: Any, data: bytes, version: int) -> Any:
    if issubclass(kind, ApiData):
        return kind.decode(data, version=version, header=False)
    return kind.decode(data, version=version)


def _build(kind: Any, theirs: Any, message: Any, version: int) -> Any:
    values = {}
    for field in type(message).STRUCT.fields:
        their_field = theirs.fields.get(field.name)
        if field.exists(version) and their_field is not None:
            value = getattr(message, field.name)
            values[field.name] = _built(their_field, value, version)
    return kind(version=version, **values)


def _built(theirs: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if theirs.is_struct_array():
        return [_build(theirs.data_class, theirs.array_of, item, version) for item in value]
    if theirs.is_struct():
        return _build(theirs.data_class, theirs, value, version)
    if theirs.is_array():
        return list(value)
    if theirs._type_str == "uuid":
        return uuid.UUID(bytes=value) if any(value) else None
    return value


def differences(theirs: Any, struct: Struct, value: Any, message: Any, version: int, path: str = "") -> list[str]:
    """The fields in which their decoded message differs from ours."""
    found = []
    for field in struct.fields:
        if not field.exists(version) or (field.tag is not None and field.tag >= OUR_TAGS):
            continue
        here = f"{path}.{field.name}"
        if field.name not in theirs.fields:
            found.append(f"{here}: they have no such field")
            continue
        their_field = theirs.fields[field.name]
        a, b = getattr(value, field.name), getattr(message, field.name)
        if field.struct and field.is_array and a and b:
            assert len(a) == len(b)
            for x, y in zip(a, b, strict=True):
                found += differences(their_field.array_of, field.struct, x, y, version, here + "[]")
        elif field.struct and a is not None and b is not None and not field.is_array:
            found += differences(their_field, field.struct, a, b, version, here)
        elif a != _built(their_field, b, version):
            found.append(f"{here}: {a!r} is not {b!r}")
    return found
