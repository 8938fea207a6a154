"""Schemas by id, without Spark: from a registry with a login, TLS, outages and malformed answers, and from files."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.avro import writer_schemas
from pybroker.avro.registry_client import BYTES_MAX, REFERENCES_MAX, NoSchema, RegistryClient
from pybroker.avro.writer_schemas import SCHEMAS_MAX, WriterSchemas
from pybroker.errors import INVALID_CONFIG, NETWORK_EXCEPTION, KafkaError
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.parsing.formats import job_schemas
from tests.certificates import Identity, server_context
from tests.cli.conftest import run
from tests.rows import with_each
from tests.spark.registry import Registry, record

ORDER = record("order", price="long")


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with made.web:
        made.add(7, ORDER)
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between attempts."""
    monkeypatch.setattr(writer_schemas, "_PAUSES_S", (0.0,))


def of(registry: Any, options: Mapping[str, str] | None = None, **how: Any) -> WriterSchemas:
    job = Job("h:1", "/t", "a", format="avro", schema="{}", registry=registry, registry_options=options or {}, **how)
    found = job_schemas(job)
    assert found is not None
    return found


def refused(*given: Any, **how: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        of(*given, **how)
    assert caught.value.code == INVALID_CONFIG
    return caught.value.message


def test_a_schema_is_asked_for_once(registry: Registry) -> None:
    """A worker requests a schema once for all of its tasks, as an id never changes its schema; it requests an unknown
    id again."""
    asked = of(f" {registry.url}/ ")
    assert [asked.schema(7).schema for _ in range(2)] == [ORDER, ORDER]
    assert pickle.loads(pickle.dumps(asked)).schema(7).schema == ORDER and registry.paths == ["/schemas/ids/7"]
    for _ in range(2):
        with pytest.raises(NoSchema, match=f"is not known to the schema registry {registry.url}"):
            asked.schema(8)
    registry.add(8, ORDER)
    assert asked.schema(8).schema == ORDER


@pytest.mark.parametrize(("options", "login"), [
    ({"basic.auth.user.info": "ann:of: ann"}, "Basic " + base64.b64encode(b"ann:of: ann").decode()),
    ({"bearer.auth.token": "abc.def"}, "Bearer abc.def"),
])  # fmt: skip
def test_a_login(registry: Registry, options: dict[str, str], login: str) -> None:
    """A registry gets the login; without it, or with a wrong one, the batch fails and no record becomes a dead letter.
    No text has the password."""
    registry.login = login
    asked = of(registry.url, options)
    asked.check()
    assert asked.schema(7).schema == ORDER
    for other in (of(registry.url), of(registry.url, {"bearer.auth.token": "other"})):
        for ask in (other.check, lambda other=other: other.schema(7)):
            with pytest.raises(KafkaError) as caught:
                ask()
            assert "status 401: basic.auth.user.info or bearer.auth.token is wrong or missing" in caught.value.message
    job = Job("h:1", "/t", "a", format="avro", schema="{}", registry=registry.url, registry_options=options)
    assert not [text for text in (repr(asked), repr(job)) for secret in ("ann", "abc.def") if secret in text]


def test_tls(tmp_path: Path) -> None:
    """TLS accepts a certificate authority from a file, which workers need not have, and refuses another authority."""
    authority, other = Identity("authority"), Identity("other")
    made = Registry(server_context(Identity("registry", authority, hosts=["127.0.0.1"]), tmp_path / "own.pem"))
    with made.web:
        made.add(7, ORDER)
        asked = of(made.url, {"ssl.ca.location": authority.trust_pem(tmp_path / "ca.pem")})
        (tmp_path / "ca.pem").unlink()
        assert asked.schema(7).schema == ORDER
        for options in ({"ssl.ca.location": other.trust_pem(tmp_path / "other.pem")}, {}):
            with pytest.raises(KafkaError, match="its certificate is refused"):
                of(made.url, options).check()


@pytest.mark.parametrize("fail", [[500], [503, None], [429], [None]])
def test_a_registry_that_comes_back(registry: Registry, fail: list[int | None]) -> None:
    registry.fail = fail
    assert of(registry.url).schema(7).schema == ORDER


def test_a_registry_that_is_down() -> None:
    """A registry that is down fails the batch with one sentence, with the id and the URL, after every URL was tried."""
    with Registry().web as gone:
        url = gone.url.removesuffix("/keys")
    down = WriterSchemas(RegistryClient((url,)), patience_s=0.0)
    with pytest.raises(KafkaError) as caught:
        down.schema(7)
    assert caught.value.code == NETWORK_EXCEPTION
    assert caught.value.message == (
        f"the schema registry {url} did not give schema 7: it cannot be reached: Connection refused")  # fmt: skip
    made = Registry()
    with made.web:
        made.add(7, ORDER)
        assert WriterSchemas(RegistryClient((url, made.url)), patience_s=0.0).schema(7).schema == ORDER


def test_how_long_a_registry_is_waited_for(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry is retried for a minute, with pauses, by the test's clock; then the sentence says so."""
    monkeypatch.undo()
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(writer_schemas, "time", clock)
    registry.fail = [500] * 1_000
    with pytest.raises(KafkaError, match="it answered with status 500, asked again for 60 s"):
        of(registry.url).schema(7)
    assert 55 < sum(pauses) <= 60 and min(pauses) > 0 and len(registry.paths) == len(pauses) + 1 < 40


@pytest.mark.parametrize(("document", "why"), [
    ([], "the answer is not a registry's JSON"),
    ({}, "the answer has no schema"),
    ({"schema": "{}", "references": [{"subject": "s"}]}, "the answer has a reference without subject and version"),
])  # fmt: skip
def test_an_answer_that_is_none(registry: Registry, document: Any, why: str) -> None:
    """An answer that no registry sends fails the batch: another service is at the address."""
    registry.schemas[7] = document
    with pytest.raises(KafkaError, match=f"did not give schema 7: {why}"):
        WriterSchemas(RegistryClient((registry.url,)), patience_s=0.0).schema(7)


def test_a_404_of_something_else(registry: Registry) -> None:
    """A 404 of a proxy, or for a wrong path, fails the batch: only a registry's 404 means an unknown schema."""
    with pytest.raises(KafkaError, match="did not give schema 7: it answered with status 404"):
        WriterSchemas(RegistryClient((f"{registry.url}/apis",)), patience_s=0.0).schema(7)


@pytest.mark.parametrize(("document", "why"), [
    ({"schema": "message A {}", "schemaType": "PROTOBUF"}, "is of type 'PROTOBUF', not AVRO"),
    ({"schema": "{"}, "is not JSON"),
    ({"schema": "[" * 100_000}, "is not JSON"),
    ({"schema": " " * (BYTES_MAX + 1)}, f"has more than {BYTES_MAX} bytes with its references"),
    ({"schema": "{}", "references": [{"subject": "deep", "version": 0}]},
     f"has more than {REFERENCES_MAX} references"),
])  # fmt: skip
def test_a_schema_that_cannot_be_used(registry: Registry, document: Any, why: str) -> None:
    """A schema that cannot be used makes its records dead letters; other records are read."""
    registry.schemas[7] = document
    for at in range(REFERENCES_MAX + 1):
        needs = [{"subject": "deep", "version": at + 1}]
        registry.subjects["deep", at] = {"schema": "{}", "references": needs}
    with pytest.raises(NoSchema) as caught:
        WriterSchemas(RegistryClient((registry.url,))).schema(7)
    assert str(caught.value) == why


def test_schemas_of_files(tmp_path: Path) -> None:
    """Schemas come from a directory with a file for each id, or from one file with all of them; the workers get
    them."""
    (tmp_path / "7.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "README").write_text("not a schema")
    one = tmp_path / "one"
    one.write_text(json.dumps({"7": ORDER}))
    for path in (tmp_path, one):
        found = pickle.loads(pickle.dumps(of(None, schemas=str(path))))
        found.check()
        assert found.schema(7).schema == ORDER
        with pytest.raises(NoSchema, match="is not among the given schemas"):
            found.schema(8)


@pytest.mark.parametrize(("text", "why"), [
    ("{", "is not JSON: "),
    ("[]", "has no schemas: it needs files ID.avsc, or a file"),
    ("{}", "has no schemas"),
    ('{"seven": 1}', "has 'seven' where a schema's id belongs"),
    (f'{{"{1 << 32}": 1}}', "where a schema's id belongs"),
    (json.dumps({str(at): 1 for at in range(SCHEMAS_MAX + 1)}), f"has {SCHEMAS_MAX + 1} schemas; it can have"),
])  # fmt: skip
def test_files_of_schemas_that_are_none(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "schemas"
    file.write_text(text)
    assert why in refused(None, schemas=str(file))


@with_each(("registry", "options", "how", "why"), [
    ("registry:8081", {}, {}, "the schema registry is 'registry:8081'; it must be http://HOST:PORT"),
    ("http://h/?a=b", {}, {}, "it must be http://HOST:PORT"),
    ("http://h:99999", {}, {}, "it must be http://HOST:PORT"),
    ("http://ann:secret@h", {}, {}, "remove the user and password from the schema registry's URL"),
    ("http://h", {"basic.auth.user.info": "a:secret", "bearer.auth.token": "t"}, {}, "remove one of them"),
    ("http://h", {"basic.auth.user.info": "secret"}, {}, "basic.auth.user.info has no colon"),
    ("http://h", {"bearer.auth.token": "secret\r\nX: y"}, {}, "bearer.auth.token is empty, or has characters"),
    ("http://h", {"basic.auth.credentials.source": "secret"}, {}, "is not an option of a schema registry"),
    ("http://h", {"ssl.ca.location": "/no/such"}, {}, "cannot be read: no such file or directory"),
    ("http://h", {"ssl.ca.location": __file__}, {}, "has no certificates (PEM)"),
    ("http://h", {}, {"schemas": "/s"}, "a schema registry and schemas by id are given"),
    (None, {"bearer.auth.token": "secret"}, {}, "options of a schema registry are given without a registry"),
    (None, {}, {"schemas": "/no/such"}, "cannot be read: no such file or directory"),
])  # fmt: skip
def test_what_a_job_may_not_say(registry: str | None, options: Any, how: Any, why: str) -> None:
    told = refused(registry, options, **how)
    assert why.lower() in told.lower() and "secret" not in told


@pytest.mark.parametrize(("format_", "schema", "why"), [
    ("json", "id int", "a frame before JSON is skipped"), ("raw", None, "values are stored as they are"),
])  # fmt: skip
def test_only_avro_has_a_use_for_it(format_: Any, schema: str | None, why: str) -> None:
    with pytest.raises(KafkaError, match=f"format {format_} needs neither a schema registry .*: {why}"):
        Job("h:1", "/t", "a", format=format_, schema=schema, registry="http://h")


COMMAND = ("pipeline", "--table", "/nowhere", "-t", "a", "-b", "127.0.0.1:1", "--format", "avro", "--schema")
AVRO = json.dumps(ORDER)


def test_the_command_asks_before_spark_starts(registry: Registry, tmp_path: Path) -> None:
    """The command tries the registry before Spark starts: no answer, or a refused login, is one sentence. The login is
    in a file that only its owner can read."""
    with Registry().web as gone:
        url = gone.url.removesuffix("/keys")
    done = run(*COMMAND, AVRO, "--registry", url)
    assert done.code == 1
    assert done.sentence == f"the schema registry {url} did not give schema 1: it cannot be reached: Connection refused"
    registry.login = "Basic " + base64.b64encode(b"ann:sesame").decode()
    done = run(*COMMAND, AVRO, "--registry", registry.url)
    assert done.code == 1 and "basic.auth.user.info or bearer.auth.token is wrong or missing" in done.sentence
    file = tmp_path / "registry.properties"
    file.write_text("basic.auth.user.info=ann:sesame\n")
    file.chmod(0o644)
    done = run(*COMMAND, AVRO, "--registry", registry.url, "--registry-config", file)
    assert done.code == 2 and "other users can read it" in done.sentence and "sesame" not in done.err
    file.chmod(0o600)
    done = run(*COMMAND, AVRO, "--registry", registry.url, "--registry-config", file)
    assert done.sentence == "could not reach 127.0.0.1:1: connection refused"


@pytest.mark.parametrize(("options", "sentence"), [
    (["--registry", "registry:8081"], "the schema registry is 'registry:8081'; it must be http://HOST:PORT"),
    (["--registry", "http://ann:sesame@h:1"], "remove the user and password from the schema registry's URL"),
    (["--registry", "http://h:1", "--schemas", "."], "a schema registry and schemas by id are given"),
    (["--schemas", __file__], "the schema file "),
])  # fmt: skip
def test_the_command_refuses(options: list[str], sentence: str) -> None:
    done = run(*COMMAND, AVRO, *options)
    assert done.code == 2 and done.sentence.startswith(sentence) and "sesame" not in done.err
