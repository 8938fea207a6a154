"""The schemas of Avro's writers, by the id in a record's frame: from a Schema Registry, or from files.

An unknown id is NoSchema: the record counts as unparsable. A registry that is down, refuses the login or answers
nonsense is a KafkaError: the batch fails, and the next start reads it again.
"""

import functools
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.avro.registry_client import (
    REGISTRY,
    NoAnswer,
    NoSchema,
    RegisteredSchema,
    RegistryClient,
    basic,
    bearer,
    in_order,
    read_authorities,
    read_text,
    registry_url,
)
from pybroker.avro.values import Avro
from pybroker.errors import INVALID_CONFIG, KafkaError, system_words

USER, TOKEN, AUTHORITIES = "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location"
OPTIONS: Final = (USER, TOKEN, AUTHORITIES)
"""Settings of a registry's client, by the names of Confluent's clients."""
SECRETS: Final = frozenset((USER, TOKEN))
SCHEMAS_MAX: Final = 1_000
"""The most schemas that a worker caches, or that the files may have."""
OUTAGE_S_MAX: Final = 60.0
"""Seconds to wait for a registry that is down, as for a broker."""
_PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0)
_ANY_ID: Final = 1

Answer = TypeVar("Answer")


class WriterSchema(NamedTuple):
    """A schema as JSON, with its references, each before the ones that need it."""

    schema: Avro
    references: tuple[Avro, ...] = ()


@dataclass(frozen=True)
class WriterSchemas:
    """The source of schemas by id, which is sent to Spark's workers. Two with the same settings are equal.

    registry: None with files. given: (id, JSON) from the files. patience_s: seconds to retry a registry that is
    down."""

    registry: RegistryClient | None = None
    given: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    patience_s: float = OUTAGE_S_MAX

    def schema(self, number: int) -> WriterSchema:
        """Return the schema of an id. Blocks. Raises NoSchema, or KafkaError if the registry does not answer."""
        if self.registry is None:
            text = dict(self.given).get(number)
            if text is None:
                raise NoSchema("is not among the given schemas")
            return WriterSchema(json.loads(text))
        return _kept(self.registry, number, self.patience_s)

    def check(self) -> None:
        """KafkaError if the registry does not answer now, is not a registry, or refuses the login."""
        if self.registry is not None:
            try:
                _Asking(self.registry, _ANY_ID, patience_s=0.0).first()
            except NoSchema:
                return


@functools.lru_cache(maxsize=SCHEMAS_MAX)
def _kept(registry: RegistryClient, number: int, patience_s: float) -> WriterSchema:
    """Return the schema of an id from a registry, cached for the process's life; a missing one is not cached."""
    return _Asking(registry, number, patience_s).written()


class _Asking:
    """The requests for one id, which share `patience_s`."""

    def __init__(self, registry: RegistryClient, number: int, patience_s: float) -> None:
        self._registry = registry
        self._number = number
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s

    def written(self) -> WriterSchema:
        *references, schema = (_parsed_schema(each.text) for each in in_order(self.first(), self._version))
        return WriterSchema(schema, tuple(references))

    def first(self) -> RegisteredSchema:
        """Return the schema of the id itself."""
        missing = f"is not known to {REGISTRY} {self._registry.urls[0]}"
        return self._answer(lambda: self._registry.schema(self._number), missing)

    def _version(self, subject: str, version: int) -> RegisteredSchema:
        missing = f"refers to version {version} of {subject[:100]!r}, which does not exist"
        return self._answer(lambda: self._registry.version(subject, version), missing)

    def _answer(self, ask: Callable[[], Answer], missing: str) -> Answer:
        """Return the registry's answer. NoSchema with the text `missing` if there is none, KafkaError if the registry
        does not answer."""
        attempt = 0
        while True:
            try:
                return ask()
            except NoAnswer as error:
                problem = error
            if problem.missing:
                raise NoSchema(missing)
            pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            if not problem.retriable or time.monotonic() + pause_s > self._until_s:
                raise self._failed(problem)
            time.sleep(pause_s)
            attempt += 1

    def _failed(self, problem: NoAnswer) -> KafkaError:
        login = f": {USER} or {TOKEN} is wrong or missing" if problem.status in (401, 403) else ""
        waited = f", asked again for {self._patience_s:g} s" if self._patience_s and problem.retriable else ""
        asked = f"{REGISTRY} {', '.join(self._registry.urls)}"
        words = f"{asked} did not give schema {self._number}: {problem}{login}{waited}"
        return KafkaError(errors.NETWORK_EXCEPTION, words)


def _parsed_schema(text: str) -> Avro:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoSchema("is not JSON") from None


# -- settings ----------------------------------------------------------------------------------------------------------


def writer_schemas(registry: str | None, options: Mapping[str, str], files: str | None = None) -> WriterSchemas | None:
    """Return the source of schemas by id: a registry's URLs, with commas between, or files. None without either.
    KafkaError if it cannot be used."""
    try:
        if files is not None:
            return WriterSchemas(given=_of_files(files))
        return None if registry is None else WriterSchemas(_client(registry, options))
    except ValueError as error:
        raise KafkaError(INVALID_CONFIG, str(error)) from None


def _client(registry: str, options: Mapping[str, str]) -> RegistryClient:
    """Return the client of a registry. ValueError, without a secret, if its settings cannot be used."""
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"{name!r} is not an option of a schema registry; it can be {', '.join(OPTIONS)}")
    urls = tuple(registry_url(each, USER) for each in registry.split(","))
    file = options.get(AUTHORITIES)
    return RegistryClient(urls, _authorization(options), None if file is None else read_authorities(file, AUTHORITIES))


def _authorization(options: Mapping[str, str]) -> str | None:
    user, token = options.get(USER), options.get(TOKEN)
    if user is not None and token is not None:
        raise ValueError(f"{USER} and {TOKEN} are given: remove one of them")
    if user is not None:
        if ":" not in user:
            raise ValueError(f"{USER} has no colon: it must be USER:PASSWORD")
        return basic(user)
    return None if token is None else bearer(token, TOKEN)


def _of_files(path: str) -> tuple[tuple[int, str], ...]:
    """Read schemas by id from a directory of files `5.avsc`, or from a file `{"5": SCHEMA, ...}`."""
    if os.path.isdir(path):
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise ValueError(f"the schemas in {path} cannot be read: {system_words(error)}") from None
        found = [(name, re.fullmatch(r"(\d{1,10})\.(?:avsc|json)", name)) for name in names]
        texts = {each[1]: read_text(os.path.join(path, name), "a schema") for name, each in found if each}
        schemas = {number: _parsed(text, f"schema {number} in {path}") for number, text in texts.items()}
    else:
        schemas = _parsed(read_text(path, "the file of schemas"), f"the schema file {path}")
    if not isinstance(schemas, dict) or not schemas:
        raise ValueError(f'{path} has no schemas: it needs files ID.avsc, or a file {{"ID": SCHEMA, ...}}')
    if len(schemas) > SCHEMAS_MAX:
        raise ValueError(f"{path} has {len(schemas)} schemas; it can have {SCHEMAS_MAX}")
    for number in schemas:
        if not re.fullmatch(r"\d{1,10}", number) or int(number) >= 1 << 32:
            raise ValueError(f"{path} has {number[:50]!r} where a schema's id belongs")
    return tuple((int(number), json.dumps(schema)) for number, schema in schemas.items())


def _parsed(text: str, what: str) -> Avro:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{what} is not JSON: {why}") from None
