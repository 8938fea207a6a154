"""Brokers whose disks are full: another leads what a full one led, and a cluster of full ones serves all but writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.harness import HOST, free_port, until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]


@pytest.fixture
def ports() -> dict[int, int]:
    """The metrics port of each broker."""
    return {number: free_port() for number in (1, 2, 3)}


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore, ports: dict[int, int]) -> Iterator[Cluster]:
    """Three brokers whose disks can be filled."""
    made = Cluster(
        tmp_path, store, leader_imbalance_check_interval_seconds=2, log_segment_delete_delay_ms=500,
        metrics_listener=lambda number: f"{HOST}:{ports[number]}",
    )  # fmt: skip
    for broker in made.brokers.values():
        broker.is_fillable = True
    with made as running:
        yield running


def asked(port: int, path: str) -> str:
    """The body of a page of the metrics port, whose status is 200."""
    with urlopen(f"http://{HOST}:{port}/{path}") as answer:
        return str(answer.read().decode())


def shown(cluster: Cluster, *command: str, code: int = 0) -> str:
    """The output of a command of `pybroker`, which ends with this exit code."""
    done = run(*command, "-b", cluster.bootstrap)
    assert done.code == code, done
    return done.out


def test_another_leads_until_there_is_room(cluster: Cluster, ports: dict[int, int]) -> None:
    """Clients go on at another leader; the full broker says so in its log, `/readyz`, a metric and `pybroker cluster`.
    It leads again soon after it has room, without a restart."""
    topic, broker = cluster.create("t", replicas=[[1, 2, 3]]), cluster.brokers[1]
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        began = time.monotonic()
        broker.full.touch()
        until("another leads", lambda: cluster.leader(topic) in (2, 3))
        print(f"another leads after {1000 * (time.monotonic() - began):.0f} ms")
        witness.until_acked(200)
        print(f"longest gap {1000 * witness.gap_s(began):.0f} ms")
        lack = "no space left on device"
        assert cluster.partition(topic)[1] == [2, 3]
        assert broker.count("log dir full") == 1
        assert asked(ports[1], "readyz") == f"{broker.data_dir} takes no writes: {lack}\n"
        assert f'pybroker_log_dir_full{{dir="{broker.data_dir}"}} 1.0' in asked(ports[1], "metrics")
        named = f"broker 1 takes no writes in {broker.data_dir}: {lack}"
        assert named in shown(cluster, "cluster") and named in shown(cluster, "cluster", "check", code=1)
        assert asked(ports[2], "readyz") == "ok\n"
        broker.full.unlink()
        until("it leads again", lambda: cluster.leader(topic) == 1)
        cluster.until_in_sync(topic)
        assert broker.count("log dir has room again") == 1
        assert asked(ports[1], "readyz") == "ok\n"
        assert "is healthy" in shown(cluster, "cluster", "check", "--wait", "in-sync")
        witness.until_acked()
        witness.judge()


def test_a_cluster_whose_disks_are_all_full(cluster: Cluster) -> None:
    """Records are read, settings altered and topics deleted until there is room: then writes go on, and no acknowledged
    record is missing. Deleting records writes to the reserve, which these disks do not have; a lone broker's test on a
    file system of its own has it (tests/server/system/test_full_disks.py)."""
    topic, other = cluster.create("t", replicas=[[1, 2, 3]]), cluster.create("u", replicas=[[2, 3, 1]])
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        for broker in cluster.brokers.values():
            broker.full.touch()
        until("two are full", lambda: sum(b.count("log dir full") for b in cluster.brokers.values()) >= 2)
        witness.until_quiet()
        acked = witness.acked
        read = shown(cluster, "consume", topic, "--from-beginning", "--exit-at-end").splitlines()
        assert len(read) >= acked > 50
        shown(cluster, "configs", "alter", "--topic", topic, "--set", "retention.ms=86400001")
        assert "86400001" in shown(cluster, "configs", "describe", "retention.ms", "--topic", topic)
        shown(cluster, "topics", "delete", other, "--yes")
        homes = [broker.data_dir for broker in cluster.brokers.values()]
        until("its files are gone", lambda: not any(list(home.glob(f"{other}-0*")) for home in homes))
        assert cluster.leader(topic) in (1, 2, 3)
        for broker in cluster.brokers.values():
            broker.full.unlink()
        witness.until_acked()
        cluster.until_in_sync(topic)
        witness.judge()
