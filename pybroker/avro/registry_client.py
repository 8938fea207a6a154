"""Requests to a schema registry: Confluent's and Karapace's have the same REST interface.

    GET /schemas/ids/ID                     the schema of an id
    GET /subjects/SUBJECT/versions/VERSION  a schema that another refers to, or the latest one
    POST /subjects/SUBJECT/versions         register a schema; its id
    POST /subjects/SUBJECT                  the id of a registered schema

Requests are bounded in time and size, follow no redirects and use no proxies (`pybroker.security.oauth.web`). What a
registry sends is untrusted input: a schema has bounds for its bytes and its references.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from pybroker.avro.values import Document, Told
from pybroker.errors import system_words
from pybroker.security.oauth import web

REGISTRY: Final = "the schema registry"
AVRO: Final = "AVRO"
REFERENCES_MAX: Final = 100
BYTES_MAX: Final = 1 << 20
"""The most bytes of one schema with all its references."""
FILE_BYTES_MAX: Final = 16 << 20
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_MISSING: Final = (40401, 40402, 40403)
"""A registry's error codes for an unknown subject, version and schema."""
AGAIN: Final = (408, 429)
"""Statuses below 500 that a retry may avoid."""
_WORDS_MAX: Final = 200


Read = TypeVar("Read")


class NoSchema(Exception):
    """An id has no usable schema; the message continues "schema 5 ..."."""


class NoAnswer(Exception):
    """A registry gave no answer that can be used; the message is a short reason without data from the registry.

    request: the method and the URL. status: of HTTP, 0 without a response. code, words: the registry's `error_code` and
    `message`. retriable: a retry may help."""

    def __init__(self, error: web.WebError, request: str) -> None:
        super().__init__(str(error))
        self.request, self.status = request, error.status
        self.retriable = not error.refused or error.status in AGAIN
        answer = _object(error.answer)
        code = None if answer is None else answer.get("error_code")
        self.code = code if isinstance(code, int) else 0
        words = error.answer[:_WORDS_MAX].decode(errors="replace") if answer is None else answer.get("message", "")
        self.words = str(words)

    @property
    def missing(self) -> bool:
        """True if the registry itself reports it missing: a wrong path or a proxy also answers 404."""
        return self.status == 404 and self.code in _MISSING


class Reference(NamedTuple):
    """A schema that another one refers to by a name."""

    name: str
    subject: str
    version: int


class RegisteredSchema(NamedTuple):
    """A registered schema; `text` is its definition, `kind` AVRO, JSON or PROTOBUF."""

    text: str
    kind: str = AVRO
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class RegistryClient:
    """A client of one registry. It caches nothing, any number of threads may use it, and it can be pickled.

    urls: of the registry's instances, tried in turn. authorization: the login's header. authorities: the CA
    certificates (PEM) for the registry's certificate; None means the system's. timeout_s: of one request; None means
    web.SECONDS_MAX."""

    urls: tuple[str, ...]
    authorization: str | None = field(default=None, repr=False)
    authorities: str | None = field(default=None, repr=False)
    timeout_s: float | None = None

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema of an id. Blocks, as all requests do. Raises NoAnswer."""
        return self._ask(f"/schemas/ids/{number}", _registered)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return the schema of a subject's version. Raises NoAnswer."""
        return self._ask(f"{_of(subject)}/versions/{version}", _registered)

    def latest(self, subject: str) -> tuple[int, RegisteredSchema]:
        """Return the id and the schema of a subject's latest version. Raises NoAnswer."""
        return self._ask(f"{_of(subject)}/versions/latest", lambda answer: (_id(answer), _registered(answer)))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register a schema under a subject, unless it is registered; return its id. Raises NoAnswer."""
        return self._ask(f"{_of(subject)}/versions", _id, schema)

    def lookup(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the id of a schema that is registered under a subject. Raises NoAnswer."""
        return self._ask(_of(subject), _id, schema)

    def _ask(self, path: str, read: Callable[[Told], Read], schema: RegisteredSchema | None = None) -> Read:
        """Return what `read` finds in the answer of the first instance that gives one; `schema` is posted. No instance
        is asked after one that refuses."""
        headers = {"Accept": f"{_CONTENT}, application/json"}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        body = None
        if schema is not None:
            headers["Content-Type"] = _CONTENT
            body = json.dumps(_document(schema)).encode()
        for url in self.urls:
            try:
                data = web.read(
                    url + path, body=body, headers=headers, bytes_max=2 * BYTES_MAX, authorities=self.authorities,
                    seconds_max=self.timeout_s,
                )  # fmt: skip
                answer = _object(data)
                if answer is None:
                    raise web.WebError("the answer is not a registry's JSON")
                return read(answer)
            except web.WebError as error:
                problem = NoAnswer(error, f"{'GET' if body is None else 'POST'} {url}{path}")
            if not problem.retriable:
                break
        raise problem


def _of(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


def _object(data: bytes) -> Document | None:
    """Return the object of a JSON text; None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# -- answers -----------------------------------------------------------------------------------------------------------


def _registered(answer: Told) -> RegisteredSchema:
    text, kind, references = answer.get("schema"), answer.get("schemaType") or AVRO, answer.get("references")
    if not isinstance(text, str):
        raise web.WebError("the answer has no schema")
    found = []
    for each in references if isinstance(references, list) else ():
        subject, version = (each.get("subject"), each.get("version")) if isinstance(each, dict) else (None, None)
        if not isinstance(subject, str) or not isinstance(version, int):
            raise web.WebError("the answer has a reference without subject and version")
        found.append(Reference(str(each.get("name", "")), subject, version))
    return RegisteredSchema(text, str(kind), tuple(found))


def _id(answer: Told) -> int:
    number = answer.get("id")
    if not isinstance(number, int):
        raise web.WebError("the answer has no id")
    return number


def _document(schema: RegisteredSchema) -> Document:
    document: Document = {"schema": schema.text}
    if schema.kind != AVRO:
        document["schemaType"] = schema.kind
    if schema.references:
        document["references"] = [each._asdict() for each in schema.references]
    return document


def in_order(schema: RegisteredSchema, version: Callable[[str, int], RegisteredSchema]) -> list[RegisteredSchema]:
    """Return an Avro schema after all the schemas that it refers to, each after those that it refers to itself.

    version: returns the schema of a subject's version. Raises NoSchema for another kind of schema or beyond the
    bounds, and what `version` raises."""
    found: list[RegisteredSchema] = []
    seen: set[tuple[str, int]] = set()
    size = 0

    def add(one: RegisteredSchema) -> None:
        nonlocal size
        if one.kind != AVRO:
            raise NoSchema(f"is of type {one.kind[:20]!r}, not {AVRO}")
        size += len(one.text)
        if size > BYTES_MAX:
            raise NoSchema(f"has more than {BYTES_MAX} bytes with its references")
        for _, subject, number in one.references:
            if (subject, number) in seen:
                continue
            seen.add((subject, number))
            if len(seen) > REFERENCES_MAX:
                raise NoSchema(f"has more than {REFERENCES_MAX} references")
            add(version(subject, number))
        found.append(one)

    add(schema)
    return found


# -- settings ----------------------------------------------------------------------------------------------------------


def registry_url(text: str, login: str) -> str:
    """Check a registry's URL. ValueError for a malformed one, without the password that it may contain.

    login: the name of the setting that has the user and password."""
    stripped = text.strip().rstrip("/")
    try:
        parts = urlsplit(stripped)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if "@" in stripped:
        raise ValueError(f"remove the user and password from {REGISTRY}'s URL: give {login}")
    if not known or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", stripped):
        raise ValueError(f"{REGISTRY} is {stripped[:200]!r}; it must be http://HOST:PORT or https://HOST:PORT")
    return stripped


def basic(user_and_password: str) -> str:
    """Return the header of a login with a user's name, a colon and the password."""
    return f"Basic {base64.b64encode(user_and_password.encode()).decode()}"


def bearer(token: str, setting: str) -> str:
    """Return the header of a login with a token. ValueError, without the token, for one that is malformed."""
    if not re.fullmatch(r"[!-~]+", token):
        raise ValueError(f"{setting} is empty, or has characters that a token cannot have")
    return f"Bearer {token}"


def read_authorities(file: str, setting: str) -> str:
    """Read a file of CA certificates (PEM). ValueError if it cannot be used."""
    import ssl

    text = read_text(file, setting)
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ValueError(f"{setting} = {file} has no certificates (PEM)") from None
    return text


def read_text(path: str, what: str) -> str:
    """Read a file of text. ValueError if it cannot be read, or is too large."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except UnicodeDecodeError:
        raise ValueError(f"{what}, {path}, is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"{what}, {path}, cannot be read: {system_words(error)}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"{what}, {path}, has more than {FILE_BYTES_MAX} bytes")
    return text
