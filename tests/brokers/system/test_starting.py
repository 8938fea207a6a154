"""A start that waits for others logs the reason, and a stop ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordination.zookeeper import ZooKeeperSession, ZooKeeperStore
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.metadata import nodes
from pybroker.replication.disks.checkpoints import CLEAN_SHUTDOWN
from tests.brokers.editor import editor_of
from tests.brokers.kit import Cluster
from tests.harness import HOST, BrokerProcess, eventually, free_port
from tests.stores import AnyStore, setting_of

STOP_S_MAX = 3.0
"""The most seconds of a stop during a start that only waits; a session lasts 6 s, and a first one may take 20 s."""
pytestmark = [pytest.mark.java]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and sends nothing."""
    with socket.create_server((HOST, 0)) as server:
        yield int(server.getsockname()[1])


def stops(broker: BrokerProcess, waits_for: str) -> None:
    """Check that a waiting broker stops cleanly on SIGTERM."""
    broker.begin()
    assert broker.process is not None
    broker.process.wait_line(waits_for, 90)
    broker.process.signal(signal.SIGTERM)
    assert broker.wait_end(STOP_S_MAX) == 0, broker.output()
    assert "Traceback" not in broker.output()


def test_it_is_stopped_while_no_zookeeper_answers(tmp_path: Path, silent: int) -> None:
    broker = BrokerProcess(tmp_path, free_port(), {"zookeeper.connect": f"{HOST}:{silent}"})
    with contextlib.closing(broker):
        stops(broker, f"ZooKeeper does not answer yet.*{HOST}:{silent} accepts connections, but does not answer")


def test_it_is_stopped_while_no_etcd_answers(tmp_path: Path, silent: int) -> None:
    broker = BrokerProcess(tmp_path, free_port(), {"etcd.connect": f"http://{HOST}:{silent}"})
    with contextlib.closing(broker):
        stops(broker, f"etcd does not answer yet.*{HOST}:{silent}: it has not answered yet")


def test_a_clean_stop_before_it_is_remembered(tmp_path: Path, store: AnyStore, silent: int) -> None:
    """A start that was ended has opened no log, so the next one need not recover any."""
    with Cluster(tmp_path, store, count=1, min_insync_replicas=1, default_replication_factor=1) as cluster:
        cluster.create("t", replicas=[[1]])
        broker = cluster.brokers[1]
        mark = broker.data_dir / CLEAN_SHUTDOWN
        assert not mark.exists()
        broker.stop()
        said = mark.read_text()
        broker.sets |= setting_of(store, cluster.chroot, f"{HOST}:{silent}")
        stops(broker, f"{store.servers[0].program} does not answer yet")
        assert mark.read_text() == said
        broker.sets |= setting_of(store, cluster.chroot)
        cluster.start()
        assert not mark.exists()


def test_it_is_stopped_while_another_session_has_its_id(tmp_path: Path, store: AnyStore) -> None:
    """The broker starts once the other session has ended."""
    with Cluster(tmp_path, store, count=1) as cluster:
        cluster.brokers[1].stop()
        client = editor_of(store, cluster.chroot)
        client.start()
        try:
            client.create(nodes.broker(1), b"{}", ephemeral=True)
            stops(cluster.brokers[1], "broker waits to register")
        finally:
            client.stop()
            client.close()
        cluster.start()


def test_it_says_why_no_zookeeper_answers(tmp_path: Path, silent: int) -> None:
    closed = free_port()
    sets = {
        "zookeeper.connect": f"{HOST}:{closed},nowhere.invalid:2181,{HOST}:{silent}/a",
        "zookeeper.connection.timeout.ms": 500,
    }
    with contextlib.closing(BrokerProcess(tmp_path, free_port(), sets)) as broker:
        broker.begin()
        assert broker.wait_end() == 1
        (said,) = (line for line in broker.output().splitlines() if "no ZooKeeper answered in 0.5 s" in line)
        assert f"{HOST}:{closed}: connection refused" in said
        assert "nowhere.invalid:2181: " in said
        assert f"{HOST}:{silent} accepts connections, but does not answer like a serving ZooKeeper" in said


@pytest.mark.zookeeper("a session with etcd creates no chroot")
async def test_an_opening_that_is_given_up_leaves_nothing(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread is left of a session that had begun to create the chroot."""
    begun, create, before = asyncio.Event(), ZooKeeperSession.create, set(threading.enumerate())

    def create_and_tell(session: ZooKeeperSession, *what: Any, **how: Any) -> Any:
        begun.set()
        return create(session, *what, **how)

    monkeypatch.setattr(ZooKeeperSession, "create", create_and_tell)
    store = ZooKeeperStore(f"{zookeeper.connect}/{uuid.uuid4().hex}/b")
    opening = asyncio.ensure_future(store.open())
    await begun.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()
    left = lambda: [each for each in set(threading.enumerate()) - before if "zk_loop" in each.name]  # noqa: E731
    await eventually("its thread has ended", lambda: not left())
