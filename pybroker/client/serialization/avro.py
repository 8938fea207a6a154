"""Keys and values in Avro, in the frame of Confluent's serializers (`pybroker.avro.framing`).

fastavro is optional: the extra `schema-registry`.
"""

from __future__ import annotations

import importlib
import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, cast

from pybroker.avro.framing import FRAME_BYTES, frame, framed_id
from pybroker.avro.registry_client import NoSchema, Reference, RegisteredSchema, in_order
from pybroker.client.serialization.json_format import Loaded
from pybroker.client.serialization.registry import Registry, registry_of

if TYPE_CHECKING:
    from pybroker.client.serialization.errors import Field

Parsed = dict[str, object] | list[object] | str
_Read = Callable[[io.BytesIO, Parsed, Parsed | None], Loaded]
Subject = Callable[[str, "Field", str], str]
"""The subject of a topic, a field ("key" or "value"), and the full name of the schema's record."""


def by_topic(topic: str, field: Field, record: str) -> str:
    """Confluent's TopicNameStrategy: orders-value."""
    return f"{topic}-{field}"


def by_record(topic: str, field: Field, record: str) -> str:
    """Confluent's RecordNameStrategy: com.example.Order."""
    return record


def by_topic_and_record(topic: str, field: Field, record: str) -> str:
    """Confluent's TopicRecordNameStrategy: orders-com.example.Order."""
    return f"{topic}-{record}"


SUBJECTS: Final[Mapping[str, Subject]] = {"topic": by_topic, "record": by_record, "topic-record": by_topic_and_record}


class Avro:
    """Serializes to Avro and deserializes from it, with the schemas of a registry: its URL, a `SchemaRegistry`, or a
    `SchemaRegistryClient` of confluent-kafka's.

        Producer(value_serializer=Avro("http://localhost:8081", schema))
        Consumer("orders", value_deserializer=Avro("http://localhost:8081"))

    schema: what is written, a dict or JSON text; without one, the latest version of the subject as it is at the first
    record. Read with a schema given, records take its shape by Avro's rules; without one, that of their writer.
    references: (name, subject, version) of schemas that it refers to. auto_register: False looks the schema's id up,
    and fails if it is not registered. subject: "topic", "record", "topic-record" as Confluent's strategies, or a
    callable of topic, field and the record's name.
    """

    def __init__(
        self,
        registry: object,
        schema: Mapping[str, object] | list[object] | str | None = None,
        *,
        references: tuple[tuple[str, str, int], ...] = (),
        auto_register: bool = True,
        subject: Literal["topic", "record", "topic-record"] | Subject = "topic",
        field: Field = "value",
    ) -> None:
        if not callable(subject) and subject not in SUBJECTS:
            raise ValueError(f"subject is one of {', '.join(SUBJECTS)} or a callable, not {subject!r}")
        self._fastavro = _library()
        self._registry: Registry = registry_of(registry)
        text = schema if isinstance(schema, str) or schema is None else json.dumps(schema)
        named = tuple(Reference(*each) for each in references)
        self._own = None if text is None else RegisteredSchema(text, references=named)
        self._auto_register = auto_register
        self._subject: Subject = subject if callable(subject) else SUBJECTS[subject]
        self._field: Field = field
        self._lock = threading.Lock()
        self._writers: dict[str, tuple[bytes, Parsed]] = {}
        """By topic: the head of its records, and the parsed schema."""
        self._readers: dict[int, tuple[Parsed, _Read]] = {}
        """By id: the parsed schema, and the function that reads by it."""
        self._own_parsed: Parsed | None = None

    def __repr__(self) -> str:
        return f"<Avro {self._field}s, {self._registry!r}>"

    def for_field(self, field: Field) -> Avro:
        """The same for keys or for values, which have subjects of their own."""
        if field == self._field:
            return self
        made = Avro.__new__(Avro)
        made.__dict__.update(self.__dict__, _field=field, _lock=threading.Lock(), _writers={}, _readers={})
        return made

    def blocks(self, topic: str, given: object) -> bool:
        """True if the next call with this value, or these bytes, asks the registry."""
        if isinstance(given, bytes):  # what is written is no bytes, but for a schema of bytes
            return framed_id(given) not in self._readers
        return topic not in self._writers

    def serialize(self, topic: str, value: object, /) -> bytes:
        """The value in Avro. RegistryError if its schema is not registered, or refused; ValueError if the value does
        not have the schema's shape."""
        known = self._writers.get(topic)
        head, schema = self._writer(topic) if known is None else known
        out = io.BytesIO()
        out.write(head)
        self._fastavro.schemaless_writer(out, schema, value, strict=False)
        return out.getvalue()

    def _writer(self, topic: str) -> tuple[bytes, Parsed]:
        with self._lock:
            if topic in self._writers:
                return self._writers[topic]
            if self._own is None:
                if self._subject is not by_topic:
                    raise ValueError("without a schema the subject is that of the topic: give subject='topic'")
                id, schema = self._registry.latest(by_topic(topic, self._field, ""))
                parsed = self._parsed(schema, f"schema {id}")
            else:
                parsed = self._parsed(self._own)
                name = str(parsed.get("name", "")) if isinstance(parsed, dict) else ""
                ask = self._registry.register if self._auto_register else self._registry.lookup
                id = ask(self._subject(topic, self._field, name), self._own)
            self._writers[topic] = frame(id), parsed
            return self._writers[topic]

    def deserialize(self, topic: str, data: bytes, /) -> Loaded:
        """The value in these bytes. ValueError if they are not in this format, RegistryError if no schema is found."""
        id = framed_id(data)
        if id is None:
            raise ValueError(f"{data[:5]!r}... is no id of a schema registry, which is byte 0 and 4 bytes more")
        known = self._readers.get(id)
        schema, read = self._reader(id) if known is None else known
        body = io.BytesIO(data)
        body.seek(FRAME_BYTES)
        return read(body, schema, self._own_parsed)

    def _reader(self, id: int) -> tuple[Parsed, _Read]:
        found = self._registry.schema(id)
        with self._lock:
            if self._own is not None and self._own_parsed is None:
                self._own_parsed = self._parsed(self._own)
            named: dict[str, Parsed] = {}
            parsed = self._parsed(found, f"schema {id}", named)
            return self._readers.setdefault(id, (parsed, self._read_by(parsed, named, f"schema {id}")))

    def _read_by(self, schema: Parsed, named: Mapping[str, Parsed], name: str) -> _Read:
        """The function that reads records of a schema. Records of a schema that contains itself nest as deep as their
        bytes say: fastavro's compiled reader would overflow the C stack, which ends the process, where its reader in
        Python raises RecursionError. ValueError if a record of the schema can have any number of items."""
        shape = _Shape(named)
        try:
            shape.takes_bytes(schema)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        except RecursionError:
            raise ValueError(f"{name} is nested too deep") from None
        if not shape.recursive:
            return cast("_Read", self._fastavro.schemaless_reader)
        return cast("_Read", importlib.import_module("fastavro._read_py").schemaless_reader)

    def _parsed(
        self, schema: RegisteredSchema, name: str = "the schema", named: dict[str, Parsed] | None = None
    ) -> Parsed:
        """The schema, parsed after all that it refers to; `named` receives the types that have names. ValueError, with
        its name, if it cannot be used."""
        named = {} if named is None else named
        try:
            *references, last = in_order(schema, self._registry.version)
        except NoSchema as error:
            raise ValueError(f"{name} {error}") from None
        for reference in references:
            self._fastavro.parse_schema(_loaded(reference.text), named_schemas=named)
        parsed: Parsed = self._fastavro.parse_schema(_loaded(last.text), named_schemas=named)
        return parsed


class _Shape:
    """A walk through a parsed schema: whether it contains itself, and which parts take bytes in a record."""

    def __init__(self, named: Mapping[str, Parsed]) -> None:
        self.recursive = False
        self._named = named
        self._open: set[str] = set()
        self._done: dict[str, bool] = {}
        """True for the names of records that take bytes."""

    def takes_bytes(self, schema: object) -> bool:
        """True if each value takes at least one byte. ValueError for an array whose items take none, as ten bytes of a
        record can then claim more items than there is memory for."""
        if isinstance(schema, list):
            for branch in schema:
                self.takes_bytes(branch)
            return True
        if isinstance(schema, str):
            return self.takes_bytes(self._named[schema]) if schema in self._named else schema != "null"
        assert isinstance(schema, dict)
        match schema["type"]:
            case "record" | "error":
                return self._of_record(schema["name"], schema["fields"])
            case "array":
                if not self.takes_bytes(schema["items"]):
                    raise ValueError("has an array whose items take no bytes, so a record may claim any number of them")
                return True
            case "map":
                self.takes_bytes(schema["values"])
                return True
            case "fixed":
                return bool(schema["size"])
            case "enum":
                return True
            case other:
                return self.takes_bytes(other)

    def _of_record(self, name: str, fields: Sequence[Mapping[str, object]]) -> bool:
        if name in self._open:
            self.recursive = True
            return True
        if name not in self._done:
            self._open.add(name)
            found = [self.takes_bytes(each["type"]) for each in fields]
            self._open.discard(name)
            self._done[name] = any(found)
        return self._done[name]


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the name of a primitive type, without quotes


def _library() -> ModuleType:
    try:
        import fastavro
    except ModuleNotFoundError as error:
        from pybroker import extras

        words = f"Avro needs fastavro: {extras.install('schema-registry')}"
        raise ModuleNotFoundError(words, name=error.name) from error
    return fastavro
