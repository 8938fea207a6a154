"""Each client library once: it writes and reads, and its group continues where the last member committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pybroker
from tests.clients.adapters.java import JavaClient
from tests.clients.adapters.neutral import Client, Record
from tests.clients.conftest import CLIENTS
from tests.groups.team import Team
from tests.harness import BrokerProcess, eventually, until
from tests.java.driver import Driver
from tests.java.peers import MissingJava

JAVA = "java-3.9.1"
COUNT, READ = 20, 8
SESSION_MS = 30_000
"""Longer than in other tests, as a member on a busy machine may be silent for a while."""
HEADERS = (("kind", b"story"),)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait for more members."""
    sets = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    broker = BrokerProcess(tmp_path_factory.mktemp("serving"), sets=sets)
    with broker:
        yield broker


@pytest.fixture(params=[
    *CLIENTS, pytest.param(JAVA, marks=[pytest.mark.java, pytest.mark.xdist_group(JAVA)])
])  # fmt: skip
def client(request: pytest.FixtureRequest, serving: BrokerProcess) -> Iterator[Client]:
    if request.param in CLIENTS:
        made: Client = CLIENTS[request.param](serving.bootstrap)
        yield made
        made.close()
        return
    try:
        driver = Driver(JAVA.removeprefix("java-"))
    except MissingJava as missing:
        pytest.skip(str(missing))
    made = JavaClient(serving.bootstrap, driver)
    yield made
    made.close()
    driver.close()


def test_a_library_writes_reads_and_shares_in_a_group(client: Client, serving: BrokerProcess, topic: str) -> None:
    """Keys and headers come back at the acknowledged offsets; the next member continues at the committed offset."""
    sent = [Record(b"%d" % number, b"key", HEADERS, partition=0) for number in range(COUNT)]
    client.create_topic(topic)
    assert client.send_all(topic, sent, codec="gzip") == list(range(COUNT))
    found = client.read(topic, COUNT)
    assert [record.content for record in found] == [record.content for record in sent]
    team = Team(client.name.removesuffix("-kafka"), serving)
    try:
        read: list[tuple[int, int]] = []
        for count in (READ, COUNT - READ):
            member = team.hire(topic=topic, group=topic, limit=count, session_ms=SESSION_MS)
            member.end()
            read += member.read
            assert member.kept == {0: len(read)}
        assert read == [(0, number) for number in range(COUNT)]
    finally:
        team.close()


def test_our_own_client(serving: BrokerProcess, topic: str) -> None:
    at = {"bootstrap_servers": serving.bootstrap}
    with pybroker.Producer(**at) as producer:
        sent = [producer.send(topic, b"%d" % number, partition=0) for number in range(COUNT)]
        assert [each.result(20).offset for each in sent] == list(range(COUNT))
    read: list[bytes | None] = []
    for until_count in (READ, COUNT):
        with pybroker.Consumer(**at, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False) as group:
            group.subscribe([topic])

            def enough(group: pybroker.Consumer = group, wanted: int = until_count) -> bool:
                read.extend(each.value for each in group.poll(200, max_records=wanted - len(read)))
                return len(read) >= wanted

            until("so many are read", enough)
            group.commit()
    assert read == [b"%d" % number for number in range(COUNT)]


async def test_our_own_client_with_asyncio(serving: BrokerProcess, topic: str) -> None:
    at = {"bootstrap_servers": serving.bootstrap}
    async with pybroker.AsyncProducer(**at) as producer:
        sent = [await producer.send(topic, b"%d" % number, partition=0) for number in range(COUNT)]
        assert [(await each).offset for each in sent] == list(range(COUNT))
    read: list[bytes | None] = []
    for until_count in (READ, COUNT):
        group = pybroker.AsyncConsumer(**at, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)
        async with group:
            await group.subscribe([topic])

            async def enough(group: pybroker.AsyncConsumer = group, wanted: int = until_count) -> bool:
                read.extend(each.value for each in await group.poll(200, max_records=wanted - len(read)))
                return len(read) >= wanted

            await eventually("so many are read", enough)
            await group.commit()
    assert read == [b"%d" % number for number in range(COUNT)]
