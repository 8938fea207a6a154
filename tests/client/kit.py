"""Helpers for the tests of producers and consumers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pybroker.client.admin import Admin
from pybroker.client.consuming.consumer import Consumer, Record
from pybroker.client.net.network import NetworkClient
from pybroker.client.producing.producer import Producer
from tests.harness import Server, until

WAIT_S = 30.0


def create(server: Server, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic, and wait until the broker's metadata has it."""
    with Admin(server.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, configs=config)
        until("metadata has the topic", lambda: admin.exists(topic))


def fill(
    server: Server, topic: str, partition: int, values: Sequence[bytes | None], times: Sequence[int] | None = None
) -> None:
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        sent = [
            producer.send(topic, value, partition=partition, timestamp_ms=times[n] if times else None)
            for n, value in enumerate(values)
        ]
    for delivery in sent:
        delivery.result(0)


def find_nobody(network: NetworkClient) -> None:
    """Have a client look for its broker, and wait until the attempt has failed: errors name the failure only then."""
    network.refresh_soon()
    until("the look-up failed", lambda: network.failure is not None)


def consumer_of(server: Server, topic: str, partitions: int = 1, **settings: Any) -> Consumer:
    """A consumer of all partitions, from their start."""
    consumer = Consumer(bootstrap_servers=server.bootstrap, **settings)
    consumer.assign([(topic, p) for p in range(partitions)])
    consumer.seek_to_beginning()
    return consumer


def read(consumer: Consumer, count: int, **how: Any) -> list[Record]:
    """Read the next `count` records; AssertionError if fewer arrive in time, or more."""
    found: list[Record] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} records came within {WAIT_S:g} s"
        found += consumer.poll(1000, **how)
    assert len(found) == count
    return found


def read_all(server: Server, topic: str, count: int, partitions: int = 1) -> list[Record]:
    with consumer_of(server, topic, partitions) as consumer:
        return read(consumer, count)
