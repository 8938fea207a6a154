"""Fixtures that several tests beside Apache Kafka share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker.development.zookeeper_server import ZooKeeper
from tests.harness import until
from tests.java.mixed import KAFKA, VERSION, Mixed
from tests.java.peers import TOOLS, MissingJava, jars


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """Kafka's broker starts first and is the controller; ours join it. Its tests are in the group "peer brokers", and
    leave all three running."""
    try:
        for artifact in ((), (TOOLS,)):
            jars(VERSION, *artifact)
    except MissingJava as problem:
        pytest.skip(str(problem))
    with ZooKeeper() as zookeeper:
        mixed = Mixed(tmp_path_factory.mktemp("mixed"), zookeeper, zookeeper_session_timeout_ms=4000)
        try:
            mixed.start(KAFKA)
            mixed.start()
            until("all know each other", lambda: len(mixed.admin.list_topics(timeout=5).brokers) == 3)
            assert mixed.controller() == KAFKA
            yield mixed
        finally:
            mixed.close()
