"""Fixtures that give each test its own cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.development.zookeeper_server import ZooKeeper
from tests.brokers.kit import Cluster


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Cluster]:
    """A cluster of three brokers."""
    with Cluster(tmp_path, zookeeper) as running:
        yield running


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster with given settings: `start_cluster(zookeeper_session_timeout_ms=2000)`."""
    started: list[Cluster] = []

    def start(**sets: object) -> Cluster:
        cluster = Cluster(tmp_path, zookeeper, **sets)  # type: ignore[arg-type]
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        cluster.close()
