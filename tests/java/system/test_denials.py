"""Kafka 3.9.1 with its AclAuthorizer denies the same requests of a user without ACLs, with the same answers, as our
broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.protocol import messages as m
from pybroker.security.login import Account
from tests.asking import ask
from tests.harness import HOST, free_port
from tests.java.peers import Kafka391, MissingJava, jars
from tests.server.cast import MODULE
from tests.server.denials import TABLE
from tests.server.live import KEYS, Wire
from tests.server.test_sasl import log_in

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("peer brokers")]
ANN = Account("PLAIN", "ann", "a")
UNANSWERED = {"DescribeUserScramCredentials": {"users": [m.DescribeUserScramCredentialsRequest.Users(name="ann")]}}
"""Requests that Kafka 3.9.1 never answers as the table has them, in a form that it answers."""
WITHOUT_A_CODE = {("OffsetFetch", 1)}
"""Requests in whose answers Kafka 3.9.1 omits denied resources; ours has the error code."""


class Guarded(Kafka391):
    """A broker whose first listener allows everyone everything."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.clients = free_port()
        self.sets = {
            "listeners": f"OPEN://{HOST}:{self.port},CLIENTS://{HOST}:{self.clients}",
            "listener.security.protocol.map": "OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "OPEN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f'{MODULE} required user_ann="a";',
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Guarded]:
    try:
        jars(Guarded.version)
    except MissingJava as missing:
        pytest.skip(str(missing))
    broker = Guarded(tmp_path / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


async def test_kafka_denies_the_same_at_the_same_level(kafka: Guarded) -> None:
    kind = m.CreateTopicsRequest.Topics
    topics = [kind(name="t", num_partitions=2, replication_factor=1)]
    made = ask(kafka.port, "CreateTopics", 5, timeout_ms=5000, topics=topics)
    assert made.topics[0].error_code == 0
    wire = Wire(*await asyncio.open_connection(HOST, kafka.clients))
    versions = await wire.call("ApiVersions", 2)
    served = {api.api_key: api for api in versions.api_keys}
    await log_in(wire, ANN)
    differ = []
    for name, (first, last), fields, is_denied in TABLE:
        api = served[KEYS[name]]
        for version in range(max(first, api.min_version), min(last, api.max_version) + 1):
            answer = await wire.call(name, version, **UNANSWERED.get(name, fields))
            if (name, version) not in WITHOUT_A_CODE and not is_denied(answer):
                differ.append((name, version, answer))
    wire.writer.close()
    assert differ == []
