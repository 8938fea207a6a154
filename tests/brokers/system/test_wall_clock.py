"""A broker's wall clock jumps an hour: only timestamps and time-based retention are affected."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster, Planted
from tests.brokers.witness import Witness
from tests.harness import until
from tests.stores import AnyStore
from tests.wire import Wire, batch

pytestmark = [pytest.mark.java]
SOURCE = Path(__file__).with_name("wallclock.c")
HOUR_S = 3600
NOTHING = ("ISR shrunk", "leader elected", "controller resigned")


class Clocked(Planted):
    """A broker whose wall clock a test sets (wallclock.c)."""

    library: Path

    @property
    def _said(self) -> Path:
        return self.data_dir.with_suffix(".clock")

    def jump(self, seconds: int) -> None:
        """Set the clock wrong by this many seconds."""
        aside = self._said.with_suffix(".new")
        aside.write_text(str(seconds))
        aside.rename(self._said)

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "LD_PRELOAD": str(self.library), "WALLCLOCK_OFFSET": str(self._said)}


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    Clocked.library = tmp_path_factory.mktemp("wallclock") / "wallclock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", Clocked.library, SOURCE], check=True)


def jump(cluster: Cluster, number: int, seconds: int) -> None:
    broker = cluster.brokers[number]
    assert isinstance(broker, Clocked)
    broker.jump(seconds)


def newest_s(cluster: Cluster, number: int, topic: str) -> float:
    """The timestamp of the newest record of a partition, as its leader set it, relative to now."""
    with Wire(cluster.brokers[number].port) as wire:
        stamped = wire.produce(topic, batch([b"dated"]), acks=1)
        assert stamped.error == 0
        return stamped.append_ms / 1000 - time.time()


def test_it_jumps_either_way(tmp_path: Path, store: AnyStore) -> None:
    """The clock jumps an hour ahead and back on leader, follower and controller: no broker loses its session, ISR or
    leadership, only old records expire, and records get the clock's time. Then a leader dies, and one with another
    clock takes over."""
    how: dict[str, object] = {"replica_lag_time_max_ms": 10_000, "log_retention_check_interval_ms": 200}
    with Cluster(tmp_path, store, kind=Clocked, **how) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]], segment_bytes="50000")
        dated = cluster.create("dated", replicas=[[1, 2, 3]], message_timestamp_type="LogAppendTime")
        with Witness(cluster, topic) as witness:
            witness.until_acked()
            for number in (1, 2, 3):
                for seconds in (HOUR_S, -HOUR_S):
                    jump(cluster, number, seconds)
                    witness.until_acked(100)
            time.sleep(1)  # so that chores based on the clock have run
            assert abs(newest_s(cluster, 1, dated) + HOUR_S) < 60
            assert all(broker.count("broker registered") == 1 for broker in cluster.brokers.values())
            assert [broker.count(words) for broker in cluster.brokers.values() for words in NOTHING] == [0] * 9
            assert cluster.partition(topic) == (1, [1, 2, 3])
            jump(cluster, 2, HOUR_S)
            cluster.kill(1)
            witness.until_acked()
            cluster.restart(1)
            cluster.until_in_sync(topic)
            witness.judge()


def test_retention_by_time_notices(tmp_path: Path, store: AnyStore) -> None:
    """With the clock an hour ahead, records kept for half an hour expire."""
    how: dict[str, object] = {"log_retention_check_interval_ms": 200}
    with Cluster(tmp_path, store, kind=Clocked, **how) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]], retention_ms=str(HOUR_S * 500))
        with Wire(cluster.brokers[1].port) as wire:
            now = batch([b"now"], base_ms=int(time.time() * 1000))
            until("it leads", lambda: wire.produce(topic, now).error == 0)
            time.sleep(1)
            assert wire.list_offset(topic, -2)[2] == 0
            jump(cluster, 1, HOUR_S)
            until("it is over", lambda: wire.list_offset(topic, -2)[2] > 0)
