"""The schemas that records were written by, by the id in a record's frame: from a Schema Registry, or from files.

    a value:  0 | id, 4 bytes, big endian | the record, written by the schema of this id

A registry gives a schema by `GET /schemas/ids/ID`, and each of its references by `GET /subjects/SUBJECT/versions/N`.
An id that it does not know is NoSchema: the record is one that does not parse. A registry that is down, refuses the
login or answers with something else is a KafkaError: the batch fails, and the next start reads it again.
"""

import base64
import functools
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from pybroker import errors
from pybroker.errors import INVALID_CONFIG, KafkaError, system_words
from pybroker.security import web
from pybroker.spark.pipeline.job import Job

MAGIC: Final = 0
FRAME_BYTES: Final = 5
REGISTRY: Final = "the schema registry"
USER, TOKEN, AUTHORITIES = "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location"
OPTIONS: Final = (USER, TOKEN, AUTHORITIES)
"""Settings of a registry's client, by the names that Confluent's clients have for them."""
SECRETS: Final = frozenset((USER, TOKEN))
SCHEMAS_MAX: Final = 1_000
"""Schemas that one worker keeps, or that the files have."""
REFERENCES_MAX: Final = 100
BYTES_MAX: Final = 1 << 20
"""Of one schema with all that it refers to."""
FILE_BYTES_MAX: Final = 16 << 20
OUTAGE_S_MAX: Final = 60.0
"""A registry that is away is waited for so long, as a broker is."""
_PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0)
_ANY_ID: Final = 1
_MISSING: Final = (40401, 40402, 40403)
"""What a registry calls a subject, a version and a schema that it does not have."""
_AGAIN: Final = (408, 429)
"""Statuses below 500 that another attempt may not get."""


class NoSchema(Exception):
    """There is no schema of an id that could be used; the message completes "schema 5 ..."."""


class Written(NamedTuple):
    """A schema as JSON, and those that it refers to, each before the ones that need it."""

    schema: Any
    references: tuple[Any, ...] = ()


def framed_id(value: bytes) -> int | None:
    """The id that a value begins with if it is framed; None where it cannot be."""
    if len(value) < FRAME_BYTES or value[0] != MAGIC:
        return None
    return int.from_bytes(value[1:FRAME_BYTES])


@dataclass(frozen=True)
class WriterSchemas:
    """The place of the schemas of ids. It goes to Spark's workers. Two with the same settings are equal.

    urls: of one registry, tried in turn; none with files. authorization: the header of the login. authorities: the
    certificates (PEM) that the registry's is checked against. given: (id, JSON) of the files. patience_s: how long a
    registry that is away is asked again."""

    urls: tuple[str, ...] = ()
    authorization: str | None = field(default=None, repr=False)
    authorities: str | None = field(default=None, repr=False)
    given: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    patience_s: float = OUTAGE_S_MAX

    def schema(self, number: int) -> Written:
        """The schema of an id. Blocks. Raises NoSchema, or KafkaError where the registry does not say."""
        if not self.urls:
            text = dict(self.given).get(number)
            if text is None:
                raise NoSchema("is not among the schemas that were given")
            return Written(json.loads(text))
        return _kept(self, number)

    def check(self) -> None:
        """KafkaError where the registry does not answer now, or not as one, or refuses the login."""
        if self.urls:
            try:
                _Asking(self, _ANY_ID, patience_s=0.0).document(f"/schemas/ids/{_ANY_ID}")
            except NoSchema:
                return

    def where(self) -> str:
        """The place in words."""
        return f"{REGISTRY} {self.urls[0]}" if self.urls else "the files of schemas"


@functools.lru_cache(maxsize=SCHEMAS_MAX)
def _kept(schemas: WriterSchemas, number: int) -> Written:
    """The schema of an id in a registry, kept for the life of the process; that there is none is not kept."""
    return _Asking(schemas, number, schemas.patience_s).written()


class _Asking:
    """The requests for one id, which have `patience_s` together."""

    def __init__(self, schemas: WriterSchemas, number: int, patience_s: float) -> None:
        self._schemas = schemas
        self._number = number
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s
        self._bytes = 0
        self._seen: set[tuple[str, int]] = set()
        self._references: list[Any] = []

    def written(self) -> Written:
        schema = self._taken(self.document(f"/schemas/ids/{self._number}"))
        return Written(schema, tuple(self._references))

    def _taken(self, document: Mapping[str, Any]) -> Any:
        """The schema in an answer, after its references. NoSchema for what is no schema of Avro."""
        kind = document.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise NoSchema(f"is of type {str(kind)[:20]!r}, not AVRO")
        text = document.get("schema")
        if not isinstance(text, str):
            raise self._failed("its answer has no schema")
        self._bytes += len(text)
        if self._bytes > BYTES_MAX:
            raise NoSchema(f"has more than {BYTES_MAX} bytes with all that it refers to")
        references = document.get("references")
        for each in references if isinstance(references, list) else ():
            self._follow(each)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise NoSchema("is no JSON") from None

    def _follow(self, reference: Any) -> None:
        subject = reference.get("subject") if isinstance(reference, dict) else None
        version = reference.get("version") if isinstance(reference, dict) else None
        if not isinstance(subject, str) or not isinstance(version, int):
            raise self._failed("its answer has a reference without subject and version")
        if (subject, version) in self._seen:
            return
        self._seen.add((subject, version))
        if len(self._seen) > REFERENCES_MAX:
            raise NoSchema(f"refers to more than {REFERENCES_MAX} others")
        try:
            document = self.document(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        except NoSchema:
            raise NoSchema(f"refers to version {version} of {subject[:100]!r}, which is not there") from None
        self._references.append(self._taken(document))

    def document(self, path: str) -> dict[str, Any]:
        """The registry's answer at a path. NoSchema where it has nothing, KafkaError where it does not say so."""
        attempt = 0
        while True:
            for url in self._schemas.urls:
                try:
                    return self._ask(url, path)
                except web.WebError as problem:
                    if _says_missing(problem):
                        raise NoSchema(f"is not known to {self._schemas.where()}") from None
                    final = problem.refused and problem.status not in _AGAIN
                    why = f"{problem}{_why_login(problem)}"
                if final:
                    raise self._failed(why)
            pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            if time.monotonic() + pause_s > self._until_s:
                raise self._failed(why)
            time.sleep(pause_s)
            attempt += 1

    def _ask(self, url: str, path: str) -> dict[str, Any]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._schemas.authorization is not None:
            headers["Authorization"] = self._schemas.authorization
        data = web.read(url + path, headers=headers, bytes_max=2 * BYTES_MAX, authorities=self._schemas.authorities)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise web.WebError("its answer is no JSON of a registry")
        return document

    def _failed(self, why: str) -> KafkaError:
        waited = f", asked again for {self._patience_s:g} s" if self._patience_s else ""
        asked = f"{REGISTRY} {', '.join(self._schemas.urls)}"
        return KafkaError(errors.NETWORK_EXCEPTION, f"{asked} did not give schema {self._number}: {why}{waited}")


def _says_missing(problem: web.WebError) -> bool:
    """True if the registry itself says that there is none: a wrong path or a proxy answers with 404 as well."""
    try:
        answer = json.loads(problem.answer) if problem.status == 404 else None
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and answer.get("error_code") in _MISSING


def _why_login(problem: web.WebError) -> str:
    return f": {USER} or {TOKEN} is wrong or missing" if problem.status in (401, 403) else ""


# -- what a job says ---------------------------------------------------------------------------------------------------


def writer_schemas(job: Job) -> WriterSchemas | None:
    """The place where a job's ids are looked up; None where it names none. KafkaError for one that cannot be used."""
    if job.schemas is not None:
        return WriterSchemas(given=_of_files(job.schemas))
    if job.registry is None:
        return None
    for name in job.registry_options:
        if name not in OPTIONS:
            raise _wrong(f"{name!r} is no option of a schema registry; it can be {', '.join(OPTIONS)}")
    return WriterSchemas(
        tuple(map(_url, job.registry.split(","))),
        _authorization(job.registry_options),
        _authorities(job.registry_options.get(AUTHORITIES)),
    )


def _url(text: str) -> str:
    """KafkaError for what is no URL of a registry; its words leave out a password in it."""
    stripped = text.strip().rstrip("/")
    try:
        parts = urlsplit(stripped)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if "@" in stripped:
        raise _wrong(f"a schema registry's URL has no user and password in it: give {USER}")
    if not known or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", stripped):
        raise _wrong(f"the schema registry is {stripped[:200]!r}; expected is http://HOST:PORT or https://HOST:PORT")
    return stripped


def _authorization(options: Mapping[str, str]) -> str | None:
    user, token = options.get(USER), options.get(TOKEN)
    if user is not None and token is not None:
        raise _wrong(f"{USER} and {TOKEN} are given: a registry takes one of them")
    if user is not None:
        if ":" not in user:
            raise _wrong(f"{USER} has no colon: expected is USER:PASSWORD")
        return f"Basic {base64.b64encode(user.encode()).decode()}"
    if token is not None:
        if not re.fullmatch(r"[!-~]+", token):
            raise _wrong(f"{TOKEN} is empty, or has characters that no token has")
        return f"Bearer {token}"
    return None


def _authorities(file: str | None) -> str | None:
    """The text of a file of certificates: the workers need not have it."""
    if file is None:
        return None
    import ssl

    try:
        text = _text(file, AUTHORITIES)
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise _wrong(f"{AUTHORITIES} = {file} has no certificates (PEM)") from None
    return text


def _of_files(path: str) -> tuple[tuple[int, str], ...]:
    """The schemas of a directory, whose files are `5.avsc`, or of a file `{"5": SCHEMA, ...}`, by id."""
    if os.path.isdir(path):
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise _wrong(f"the schemas in {path} cannot be read: {system_words(error)}") from None
        found = [(name, re.fullmatch(r"(\d{1,10})\.(?:avsc|json)", name)) for name in names]
        texts = {each[1]: _text(os.path.join(path, name), "a schema") for name, each in found if each}
        schemas = {number: _parsed(text, f"schema {number} in {path}") for number, text in texts.items()}
    else:
        schemas = _parsed(_text(path, "the file of schemas"), f"the file of schemas {path}")
    if not isinstance(schemas, dict) or not schemas:
        raise _wrong(f'{path} has no schemas: expected are files ID.avsc, or a file {{"ID": SCHEMA, ...}}')
    if len(schemas) > SCHEMAS_MAX:
        raise _wrong(f"{path} has {len(schemas)} schemas; it can have {SCHEMAS_MAX}")
    for number in schemas:
        if not re.fullmatch(r"\d{1,10}", number) or int(number) >= 1 << 32:
            raise _wrong(f"{path} has {number[:50]!r} in place of a schema's id")
    return tuple((int(number), json.dumps(schema)) for number, schema in schemas.items())


def _text(path: str, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except UnicodeDecodeError:
        raise _wrong(f"{what}, {path}, is not UTF-8 text") from None
    except OSError as error:
        raise _wrong(f"{what}, {path}, cannot be read: {system_words(error)}") from None
    if len(text) > FILE_BYTES_MAX:
        raise _wrong(f"{what}, {path}, has more than {FILE_BYTES_MAX} bytes")
    return text


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _wrong(f"{what} is no JSON: {why}") from None


def _wrong(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, why)
