"""Fixtures that give each test its own cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.stores import AnyStore


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """A cluster of three brokers."""
    with Cluster(tmp_path, store) as running:
        yield running


@pytest.fixture
def ensemble(tmp_path: Path, start_store: Callable[..., AnyStore]) -> Iterator[AnyStore]:
    """Three servers of a store for this test alone, with their data in `tmp_path`/store."""
    with start_store(servers=3, home=tmp_path / "store") as running:
        yield running


@pytest.fixture
def start_cluster(tmp_path: Path, store: AnyStore) -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster with given settings: `start_cluster(zookeeper_session_timeout_ms=2000)`."""
    started: list[Cluster] = []

    def start(**sets: object) -> Cluster:
        cluster = Cluster(tmp_path, store, **sets)  # type: ignore[arg-type]
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        cluster.close()
