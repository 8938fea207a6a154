"""Names of other client libraries raise an error with our name for the same thing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import pybroker
from pybroker import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from pybroker.client import foreign
from pybroker.client.settings import CONSUMER, PRODUCER
from pybroker.config.settings import ConfigError
from tests.rows import with_each

NOBODY: Any = {"bootstrap_servers": "127.0.0.1:1"}


@with_each(
    ("client", "settings", "sentence"),
    [
        (Consumer, {"consumer_timeout_ms": 1000}, r"poll\(timeout_ms=\.\.\.\) returns an empty list after that time"),
        (Consumer, {"bootstrap.servers": "h:1"}, "did you mean bootstrap_servers"),
        (Consumer, {"fetch.wait.max.ms": 7}, "'fetch.wait.max.ms' is no setting of a consumer: use fetch_max_wait_ms"),
        (Consumer, {"sasl_plain_username": "ann"}, "use sasl_username"),
        (Consumer, {"api_version": (3, 9)}, "versions are agreed with each broker"),
        (Consumer, {"value_serializer": str}, "a consumer has value_deserializer"),
        (Consumer, {"enable.auto.offset.store": False}, r"use enable_auto_commit=False, and commit\(offsets\)"),
        (Producer, {"max_batch_size": 7}, "'max_batch_size' is no setting of a producer: use batch_size"),
        (Producer, {"queue.buffering.max.ms": 7}, "use linger_ms"),
        (Producer, {"message.timeout.ms": 7}, "use delivery_timeout_ms"),
        (Producer, {"ssl_context": None}, "use ssl_cafile, ssl_certfile and ssl_keyfile"),
        (Producer, {"stats_cb": print}, "it has no equivalent here"),
        (Producer, {"value_deserializer": str}, "a producer has value_serializer"),
        (Producer, {"fetch.wait.max.ms": 7}, "'fetch.wait.max.ms' is no setting of a producer"),
    ],
)
def test_settings(client: type, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        client(**NOBODY, **settings)


@with_each(
    ("call", "sentence"),
    [
        (
            lambda: Consumer({"bootstrap.servers": "h:1", "group.id": "g", "fetch.wait.max.ms": 7}),  # type: ignore[arg-type]
            r"not as a dict: Consumer\(bootstrap_servers=\.\.\., group_id=\.\.\., fetch_max_wait_ms=\.\.\.\)",
        ),
        (lambda: Producer({"bootstrap.servers": "h:1"}), r"not as a dict: Producer\(bootstrap_servers=\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: AsyncProducer({"acks": 1}), r"not as a dict: AsyncProducer\(acks=\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: AsyncConsumer({"acks": 1}), r"not as a dict: AsyncConsumer\(acks=\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: Admin({"bootstrap.servers": "h:1"}), r"not as a dict: Admin\(bootstrap_servers=\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: Consumer("localhost:9092"), "use bootstrap_servers='localhost:9092'"),  # type: ignore[call-arg]
        (lambda: Consumer(7, **NOBODY), "takes names of topics, each a str, and settings by keyword, not 7"),  # type: ignore[arg-type]
        (lambda: Producer("localhost:9092"), "keyword arguments alone, like bootstrap_servers='localhost:9092'"),  # type: ignore[arg-type,call-arg]
    ],
)
def test_what_comes_first(call: Callable[[], object], sentence: str) -> None:
    """The first argument is checked: a dict of dotted names, and an address in place of topics, are named in the
    error."""
    with pytest.raises((ConfigError, TypeError), match=sentence):
        call()


def test_attributes() -> None:
    """Foreign attributes raise an error with ours, for each name of the tables; others are missing as usual, so that
    hasattr() is right."""
    with Producer(**NOBODY) as producer, Consumer(**NOBODY) as consumer, Admin("127.0.0.1:1") as admin:
        clients: list[tuple[object, Mapping[str, str]]] = [
            (producer, foreign.PRODUCER), (consumer, foreign.CONSUMER), (admin, foreign.ADMIN),
        ]  # fmt: skip
        for client, table in clients:
            kind = type(client).__name__
            for theirs, ours in table.items():
                with pytest.raises(AttributeError) as caught:
                    getattr(client, theirs)
                assert str(caught.value) == f"'{kind}' object has no attribute {theirs!r}: here it is {ours}"
            with pytest.raises(AttributeError, match=f"'{kind}' object has no attribute 'nothing_at_all'$"):
                client.nothing_at_all  # type: ignore[attr-defined]  # noqa: B018
            assert not hasattr(client, "nothing_at_all") and not hasattr(client, "start")
        delivery = producer.try_send("t", b"", None, (), None, None)
        assert delivery is None
    for name, ours in foreign.CLASSES.items():
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': here it is {ours}"):
            getattr(pybroker, name)


def test_the_tables_name_what_is_there() -> None:
    """The tables name what exists: each method and setting of ours does, and none of theirs is one of ours."""
    for table, client in ((foreign.PRODUCER, Producer), (foreign.CONSUMER, Consumer), (foreign.ADMIN, Admin)):
        for theirs, ours in table.items():
            assert not hasattr(client, theirs), theirs
            name = ours.partition("(")[0]
            if name.isidentifier() and "(" in ours and name != "Admin":
                assert callable(getattr(client, name)), ours
    settings = {*PRODUCER, *CONSUMER}
    for theirs, ours in foreign.SETTINGS.items():
        assert theirs not in settings and (not ours.isidentifier() or ours in settings), theirs
    for ours in foreign.CLASSES.values():
        assert getattr(pybroker, ours.partition(".")[0])


@with_each(
    ("call", "sentence"),
    [
        (lambda p, c: p.flush(timeout=1), r"Producer.flush\(\) has no argument 'timeout': here it is timeout_s, in"),
        (lambda p, c: p.close(timeout=1), "here it is timeout_s"),
        (lambda p, c: c.poll(timeout=1.0), r"Consumer.poll\(\) has no argument 'timeout': here it is timeout_ms"),
        (lambda p, c: c.poll(1.0), "timeout_ms is a whole number of milliseconds, not 1.0"),
        (lambda p, c: c.commit(asynchronous=False), r"here it is commit_async\(offsets\)"),
        (lambda p, c: c.commit_async(callback=print), "add_done_callback"),
        (lambda p, c: c.subscribe(["t"], on_assign=print), "a method of listener=, a RebalanceListener"),
        (lambda p, c: c.close(autocommit=False), "enable_auto_commit, a setting"),
        (lambda p, c: Admin.create_topic(None, "t", num_partitions=3), "'num_partitions': here it is partitions"),
    ],
)
def test_keyword_arguments(call: Callable[[Any, Any], object], sentence: str) -> None:
    with (
        Producer(**NOBODY) as producer,
        Consumer(**NOBODY, group_id="g") as consumer,
        pytest.raises(TypeError, match=sentence),
    ):
        call(producer, consumer)


@pytest.mark.parametrize(
    ("client", "known"),
    [(Producer, PRODUCER), (AsyncProducer, PRODUCER), (Consumer, CONSUMER), (AsyncConsumer, CONSUMER)],
)
def test_signatures_list_the_settings(client: type, known: Mapping[str, Any]) -> None:
    """Signatures list the settings, for IPython and help(): each by name, with its default and its type."""
    parameters = inspect.signature(client).parameters
    assert set(known) <= set(parameters)
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in known)
    assert parameters["bootstrap_servers"].default is inspect.Parameter.empty
    assert parameters["request_timeout_ms"].default == 30000 and parameters["request_timeout_ms"].annotation is int
    assert not [p for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    for admin in (Admin, AsyncAdmin):
        assert {"bootstrap_servers", "timeout_s", "sasl_mechanism"} <= set(inspect.signature(admin).parameters)
