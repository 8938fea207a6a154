"""`pybroker quotas` on the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Done, run
from tests.harness import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("quotas"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def quotas(broker: BrokerProcess) -> Iterator[object]:
    def typed(*words: object) -> Done:
        return run("quotas", *words, "-b", broker.bootstrap)

    yield typed


def test_quotas_are_set_listed_and_deleted(quotas) -> None:  # type: ignore[no-untyped-def]
    done = quotas("set", "--user", "ann", "producer_byte_rate=1e6", "request_percentage=12.5")
    assert done.out == "Set for user ann: producer_byte_rate=1000000, request_percentage=12.5.\n"
    assert quotas("set", "--user-defaults", "--client", "c", "consumer_byte_rate=5").code == 0
    assert quotas("set", "--ip-defaults", "connection_creation_rate=10").code == 0
    assert [line.split() for line in quotas("list").out.splitlines()[1:]] == [
        ["-", "-", "<default>", "connection_creation_rate", "10"],
        ["<default>", "c", "-", "consumer_byte_rate", "5"],
        ["ann", "-", "-", "producer_byte_rate", "1000000"],
        ["ann", "-", "-", "request_percentage", "12.5"],
    ]
    assert quotas("list", "--client", "c", "--json").json == [
        {"entity": {"user": None, "client-id": "c"}, "quotas": {"consumer_byte_rate": 5.0}}
    ]
    assert quotas("delete", "--user", "ann", "request_percentage").out == "Deleted for user ann: request_percentage.\n"
    assert quotas("delete", "--user", "ann").out == "Deleted for user ann: producer_byte_rate.\n"
    done = quotas("delete", "--user", "ann")
    assert (done.code, done.out) == (0, "There are no such quotas for user ann.\n")
    assert len(quotas("list", "--json").json) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["set", "producer_byte_rate=1"], "name the entity: --user"),
        (["set", "--user", "a", "--user-defaults", "producer_byte_rate=1"], "not both"),
        (["set", "--user", "a", "speed=1"], "'speed' is not a quota"),
        (["set", "--user", "a", "producer_byte_rate=fast"], "'fast', which is not a number"),
        (["set", "--user", "a", "producer_byte_rate"], "is not NAME=VALUE"),
        (["set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"], "an ip cannot be combined with a user"),
        (["set", "--user", "", "producer_byte_rate=1"], "has an empty name"),
        (["set", "--user", "User:a", "speed=1"], "users are named without 'User:': this one logs in as User:a"),
        (["delete", "--user", "a", "speed"], "'speed' is not a quota"),
    ],
)
def test_mistakes(quotas, words: list[str], told: str) -> None:  # type: ignore[no-untyped-def]
    done = quotas(*words)
    assert done.code == 2 and told in done.err


def test_what_the_broker_refuses(quotas) -> None:  # type: ignore[no-untyped-def]
    done = quotas("set", "--ip", "nowhere", "connection_creation_rate=1")
    assert done.code == 1 and "'nowhere' is not an IP address" in done.err
