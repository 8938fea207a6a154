"""Serializers and deserializers of keys and values, as producers and consumers call them.

A callable takes the value alone, like `json.dumps`. An object takes the topic first, by the methods that kafka-python's
classes have: `serialize(topic, value)` and `deserialize(topic, data)`. A null key or value is given to neither.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from pybroker.client.serialization.errors import DeserializationError, Field
from pybroker.client.serialization.variables import GivenIn, GivenKey, GivenValue, Key, MadeOut, Value
from pybroker.core import Record

FIELDS: Final[tuple[Field, Field]] = ("key", "value")

Plain = bytes | str | None


class SerializerObject(Protocol[GivenIn]):
    """A serializer that takes the topic too."""

    def serialize(self, topic: str, value: GivenIn, /) -> Plain: ...


class DeserializerObject(Protocol[MadeOut]):
    """A deserializer that takes the topic too."""

    def deserialize(self, topic: str, data: bytes, /) -> MadeOut: ...


Serializer = Callable[[GivenIn], Plain] | SerializerObject[GivenIn]
Deserializer = Callable[[bytes], MadeOut] | DeserializerObject[MadeOut]

_Encode = Callable[[str, object], Plain]
_Decode = Callable[[str, bytes], object]
_Blocks = Callable[[str, object], bool]
"""True if the next call of this format, with the value or bytes, asks a schema registry."""


class RecordSerializer(NamedTuple):
    """The serializers of a producer, each None if it has none."""

    key: _Encode | None
    value: _Encode | None
    key_blocks: _Blocks | None
    value_blocks: _Blocks | None

    @staticmethod
    def of(key: Serializer[GivenKey] | None, value: Serializer[GivenValue] | None) -> RecordSerializer | None:
        """None if neither is given. TypeError for what can serialize nothing."""
        if key is None and value is None:
            return None
        for_key, for_value = _bound(key, "key", "serializer"), _bound(value, "value", "serializer")
        return RecordSerializer(
            cast("_Encode | None", _call(for_key, "serialize", "key_serializer")),
            cast("_Encode | None", _call(for_value, "serialize", "value_serializer")),
            _blocks(for_key),
            _blocks(for_value),
        )

    def encoded(self, topic: str, key: object, value: object) -> tuple[Plain, Plain]:
        """The key and the value as bytes, or as str to be encoded in UTF-8. Raises what a serializer raises."""
        if key is not None and self.key is not None:
            key = self.key(topic, key)
        if value is not None and self.value is not None:
            value = self.value(topic, value)
        return cast("Plain", key), cast("Plain", value)

    def blocks(self, topic: str, key: object, value: object) -> bool:
        """True if `encoded` may wait for a schema registry."""
        return _any_blocks(self.key_blocks, self.value_blocks, topic, key, value)


class Decoder(NamedTuple):
    """The deserializers of a consumer, each None if it has none."""

    key: _Decode | None
    value: _Decode | None
    key_blocks: _Blocks | None
    value_blocks: _Blocks | None

    @staticmethod
    def of(key: Deserializer[Key] | None, value: Deserializer[Value] | None) -> Decoder | None:
        """None if neither is given. TypeError for what can deserialize nothing."""
        if key is None and value is None:
            return None
        for_key, for_value = _bound(key, "key", "deserializer"), _bound(value, "value", "deserializer")
        return Decoder(
            cast("_Decode | None", _call(for_key, "deserialize", "key_deserializer")),
            cast("_Decode | None", _call(for_value, "deserialize", "value_deserializer")),
            _blocks(for_key),
            _blocks(for_value),
        )

    def decoded(self, record: Record) -> Record[object, object]:
        """The record with key and value deserialized. DeserializationError if that fails."""
        key: object = record.key
        value: object = record.value
        field = FIELDS[0]
        try:
            if record.key is not None and self.key is not None:
                key = self.key(record.topic, record.key)
            field = FIELDS[1]
            if record.value is not None and self.value is not None:
                value = self.value(record.topic, record.value)
        except Exception as problem:
            raise DeserializationError(record, field, f"{type(problem).__name__}: {problem}") from problem
        return record.replaced(key, value)

    def blocks(self, record: Record) -> bool:
        """True if `decoded` may wait for a schema registry."""
        return _any_blocks(self.key_blocks, self.value_blocks, record.topic, record.key, record.value)


def _bound(given: object, field: Field, what: str) -> object:
    """The format for this field, if it differs between keys and values. TypeError for a class of this library."""
    if isinstance(given, type) and hasattr(given, what[:-1]):
        raise TypeError(f"{field}_{what} is a callable or an object: {given.__name__}(), not the class itself")
    bind: Callable[[Field], object] | None = getattr(given, "for_field", None)
    return given if bind is None else bind(field)


def _call(given: object, method: str, name: str) -> Callable[[str, object], object] | None:
    """The call of a format, which takes topic and value."""
    found: Callable[[str, object], object] | None = getattr(given, method, None)
    if given is None or callable(found):
        return found
    if not callable(given):
        raise TypeError(f"{name} is a callable, or an object with a method {method}(topic, value), not {given!r}")
    return partial(_without_topic, given)


def _without_topic(call: Callable[[object], object], _topic: str, given: object) -> object:
    return call(given)


def _blocks(given: object) -> _Blocks | None:
    found: _Blocks | None = getattr(given, "blocks", None)
    return found


def _any_blocks(of_key: _Blocks | None, of_value: _Blocks | None, topic: str, key: object, value: object) -> bool:
    return (of_key is not None and key is not None and of_key(topic, key)) or (
        of_value is not None and value is not None and of_value(topic, value)
    )
