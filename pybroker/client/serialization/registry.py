"""Schema registries of serializers: one at a URL, or a client of confluent-kafka's.

Ids never change their schema, so each answer is asked for once and kept. The requests are `pybroker.avro`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from pybroker import errors
from pybroker.avro.registry_client import (
    AGAIN,
    REGISTRY,
    NoAnswer,
    Reference,
    RegisteredSchema,
    RegistryClient,
    basic,
    bearer,
    read_authorities,
    registry_url,
)
from pybroker.client import arguments
from pybroker.errors import KafkaError

Answer = TypeVar("Answer")


class Registry(Protocol):
    """A registry as Avro uses it."""

    def schema(self, id: int) -> RegisteredSchema: ...
    def register(self, subject: str, schema: RegisteredSchema) -> int: ...
    def lookup(self, subject: str, schema: RegisteredSchema) -> int: ...
    def latest(self, subject: str) -> tuple[int, RegisteredSchema]: ...
    def version(self, subject: str, version: int) -> RegisteredSchema: ...
    def knows(self, id: int) -> bool: ...


class RegistryError(KafkaError):
    """A refusal of a schema registry, or its silence; `status` is of HTTP, 0 without an answer."""

    def __init__(self, message: str, status: int = 0, registry_code: int = 0) -> None:
        self.status, self.registry_code = status, registry_code
        code = errors.NETWORK_EXCEPTION if not status or status >= 500 or status in AGAIN else errors.INVALID_REQUEST
        super().__init__(code, message)

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return RegistryError, (self.message, self.status, self.registry_code)


class SchemaRegistry:
    """A client of one registry, for any number of threads; several URLs are instances of it, tried in turn.

    username and password are of HTTP Basic; `token` is a bearer token instead. ssl_cafile: the file (PEM) of the
    authorities for https, else the system's."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ssl_cafile: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        given = urls.split(",") if isinstance(urls, str) else arguments.names(urls, "urls")
        self.urls = [registry_url(url, "username and password") for url in given]
        if not self.urls:
            raise ValueError("a schema registry has a URL, and urls is empty")
        if username is not None and token is not None:
            raise ValueError("a schema registry is given a username or a token, not both")
        arguments.seconds(timeout_s)
        authorization = None if token is None else bearer(token, "token")
        if username is not None:
            authorization = basic(f"{username}:{password or ''}")
        authorities = None if ssl_cafile is None else read_authorities(ssl_cafile, "ssl_cafile")
        self._client = RegistryClient(tuple(self.urls), authorization, authorities, timeout_s)
        self._lock = threading.Lock()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        self._ids: dict[tuple[str, RegisteredSchema], int] = {}

    def __repr__(self) -> str:
        return f"<SchemaRegistry at {', '.join(self.urls)}: {len(self._schemas)} schemas known>"

    def knows(self, id: int) -> bool:
        """True if `schema(id)` needs no request."""
        return id in self._schemas

    def schema(self, id: int) -> RegisteredSchema:
        """The schema of an id. RegistryError if there is none, or the registry does not answer."""
        known = self._schemas.get(id)
        if known is None:
            known = self._schemas[id] = _answer(lambda: self._client.schema(id))
        return known

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject's schema."""
        known = self._versions.get((subject, version))
        if known is None:
            known = self._versions[subject, version] = _answer(lambda: self._client.version(subject, version))
        return known

    def latest(self, subject: str) -> tuple[int, RegisteredSchema]:
        """The id and the schema of the latest version of a subject; asked for anew each time."""
        found = _answer(lambda: self._client.latest(subject))
        self._schemas[found[0]] = found[1]
        return found

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """The id of a schema, which is registered under the subject if it is not yet. RegistryError if the subject's
        compatibility rules refuse it."""
        return self._id(self._client.register, subject, schema)

    def lookup(self, subject: str, schema: RegisteredSchema) -> int:
        """The id of a schema that is registered under the subject. RegistryError if it is not."""
        return self._id(self._client.lookup, subject, schema)

    def _id(self, ask: Callable[[str, RegisteredSchema], int], subject: str, schema: RegisteredSchema) -> int:
        with self._lock:  # threads that send the first records of a topic register its schema once
            known = self._ids.get((subject, schema))
            if known is None:
                known = self._ids[subject, schema] = _answer(lambda: ask(subject, schema))
                self._schemas.setdefault(known, schema)
        return known


def _answer(ask: Callable[[], Answer]) -> Answer:
    """Return what the registry answers. RegistryError if it refuses, or gives no answer."""
    try:
        return ask()
    except NoAnswer as problem:
        if not problem.status:
            why = f"{REGISTRY} gave no usable answer to {problem.request}: {problem}"
        else:
            why = f"{REGISTRY} refused {problem.request}: {problem.status} {problem.words or problem}"
        raise RegistryError(why, problem.status, problem.code) from None


class OfConfluent:
    """A `confluent_kafka.schema_registry.SchemaRegistryClient` as a registry here."""

    def __init__(self, client: object) -> None:
        self._client = cast("_ConfluentClient", client)
        self._known: dict[int, RegisteredSchema] = {}

    def knows(self, id: int) -> bool:
        return id in self._known

    def schema(self, id: int) -> RegisteredSchema:
        if id not in self._known:
            self._known[id] = _of_confluent(self._client.get_schema(id))
        return self._known[id]

    def version(self, subject: str, version: int) -> RegisteredSchema:
        return _of_confluent(self._client.get_version(subject, version).schema)

    def latest(self, subject: str) -> tuple[int, RegisteredSchema]:
        found = self._client.get_latest_version(subject)
        return found.schema_id, _of_confluent(found.schema)

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        return self._client.register_schema(subject, self._theirs(schema))

    def lookup(self, subject: str, schema: RegisteredSchema) -> int:
        return self._client.lookup_schema(subject, self._theirs(schema)).schema_id

    @staticmethod
    def _theirs(schema: RegisteredSchema) -> object:
        from confluent_kafka import schema_registry

        references = [schema_registry.SchemaReference(*each) for each in schema.references]
        return schema_registry.Schema(schema.text, schema.kind, references)


class _ConfluentSchema(Protocol):
    schema_str: str
    schema_type: str | None
    references: Sequence[Reference] | None


class _ConfluentVersion(Protocol):
    schema_id: int
    schema: _ConfluentSchema


class _ConfluentClient(Protocol):
    def get_schema(self, schema_id: int) -> _ConfluentSchema: ...
    def get_version(self, subject: str, version: int) -> _ConfluentVersion: ...
    def get_latest_version(self, subject: str) -> _ConfluentVersion: ...
    def register_schema(self, subject: str, schema: object) -> int: ...
    def lookup_schema(self, subject: str, schema: object) -> _ConfluentVersion: ...


def _of_confluent(found: _ConfluentSchema) -> RegisteredSchema:
    references = tuple(Reference(r.name, r.subject, r.version) for r in found.references or ())
    return RegisteredSchema(found.schema_str, found.schema_type or "AVRO", references)


def registry_of(given: object) -> Registry:
    """A registry from its URL or URLs, a SchemaRegistry, or a client of confluent-kafka's. TypeError for another."""
    if isinstance(given, str | list | tuple):
        return SchemaRegistry(given)
    if hasattr(given, "get_schema") and hasattr(given, "register_schema"):
        return OfConfluent(given)
    if all(hasattr(given, name) for name in ("schema", "register", "lookup", "knows")):
        return cast(Registry, given)
    raise TypeError(f"a schema registry is a URL, a SchemaRegistry or a client of confluent-kafka's, not {given!r}")
