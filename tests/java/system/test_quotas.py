"""Quotas in a cluster of Kafka 3.9.1 and ours: set by either or by Kafka's own tool, and enforced by both."""

from __future__ import annotations

import pytest

from pybroker import core
from pybroker.client.admin import Admin
from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from pybroker.security.quotas import (
    CLIENT_ID,
    CONNECTION,
    CONSUMER,
    IP,
    MUTATION,
    PRODUCER,
    REQUEST,
    USER,
    Entity,
)
from tests.harness import HOST, until
from tests.java.mixed import KAFKA, Mixed
from tests.server.live import produce_data

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("peer brokers")]
HELD: dict[Entity, dict[str, float]] = {
    ((USER, "al ice~*"),): {PRODUCER: 1e9, REQUEST: 12.5},
    ((USER, "al ice~*"), (CLIENT_ID, "c/1")): {CONSUMER: 5.0},
    ((USER, None), (CLIENT_ID, None)): {CONSUMER: 6e9},
    ((USER, None),): {MUTATION: 1.5},
    ((CLIENT_ID, "ü"),): {PRODUCER: 7.0},
    ((CLIENT_ID, None),): {REQUEST: 300.0},
    ((IP, "10.0.0.1"),): {CONNECTION: 8.0},
    ((IP, None),): {CONNECTION: 9.0},
}
"""Quotas of all types; Kafka 3.9.1 refuses IPv6 addresses, as it URL-encodes their colons before it checks them."""


def admin_of(cluster: Mixed, number: int) -> Admin:
    return Admin(f"{HOST}:{cluster.brokers[number].port}")


@pytest.mark.parametrize(("writer", "reader"), [(1, KAFKA), (KAFKA, 1), (2, 1)])
def test_what_one_writes_the_others_describe(cluster: Mixed, writer: int, reader: int) -> None:
    with BrokerConnection(HOST, cluster.brokers[writer].port) as connection, admin_of(cluster, reader) as other:
        kind = m.AlterClientQuotasRequest.Entries

        def alter(values: dict[Entity, dict[str, float]], *, remove: bool) -> None:
            entries = [
                kind(
                    entity=[kind.Entity(entity_type=type_, entity_name=name) for type_, name in entity],
                    ops=[kind.Ops(key=key, value=value, remove=remove) for key, value in quotas.items()],
                )
                for entity, quotas in values.items()
            ]
            answer = connection.request(m.AlterClientQuotasRequest(entries=entries))
            assert [each.error_code for each in answer.entries] == [0] * len(entries)

        alter(HELD, remove=False)
        until("the other has them", lambda: other.quotas() == HELD)
        alter(HELD, remove=True)
        until("the quotas are gone", lambda: other.quotas() == {})


def throttle_ms(port: int, topic: str, client_id: str) -> int:
    """The throttle time of a Produce response, in ms."""
    records = core.build_batch([(0, None, b"x" * 50_000, ())])
    with BrokerConnection(HOST, port, client_id=client_id) as connection:
        request = m.ProduceRequest(acks=1, timeout_ms=5000, topic_data=produce_data(topic, {0: records}))
        return int(connection.request(request, version_max=9).throttle_time_ms)


@pytest.mark.parametrize("writer", [1, KAFKA])
@pytest.mark.parametrize("leader", [1, KAFKA])
def test_what_one_writes_the_others_enforce(cluster: Mixed, writer: int, leader: int) -> None:
    topic = cluster.create(f"held-{writer}-{leader}", replicas=[[leader]])
    port, client_id = cluster.brokers[leader].port, f"client {writer} ~ {leader}"
    assert throttle_ms(port, topic, client_id) == 0
    with admin_of(cluster, writer) as admin:
        admin.alter_quotas(((CLIENT_ID, client_id),), {PRODUCER: 100.0})
    until("it is held", lambda: throttle_ms(port, topic, client_id) > 1000)


def test_kafkas_own_tool(cluster: Mixed) -> None:
    """Kafka's own kafka-configs.sh sets, shows and removes quotas on our broker."""

    at = ("--bootstrap-server", f"{HOST}:{cluster.brokers[1].port}")

    def configs(*words: str) -> str:
        return cluster.tool("kafka.admin.ConfigCommand", *at, *words)

    pair = ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-default")
    configs("--alter", "--add-config", "producer_byte_rate=1024,request_percentage=50", *pair)
    configs("--alter", "--add-config", "connection_creation_rate=3", "--ip", "10.1.1.1")
    said = configs("--describe", *pair)
    assert "producer_byte_rate=1024.0" in said and "request_percentage=50.0" in said and "'ann'" in said
    assert "connection_creation_rate=3" in configs("--describe", "--ip", "10.1.1.1")
    with admin_of(cluster, 1) as admin:
        entity = ((USER, "ann"), (CLIENT_ID, None))
        assert admin.quotas()[entity] == {PRODUCER: 1024.0, REQUEST: 50.0}
        configs("--alter", "--delete-config", "producer_byte_rate,request_percentage", *pair)
        # The tool asks the controller, which may be another broker: this one learns of the change later.
        until("it is gone", lambda: entity not in admin.quotas())
