"""docs/on-disk.md names every file and directory that a broker creates, from its first start to a crash."""

from __future__ import annotations

import ctypes
import os
import re
import select
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pybroker
from pybroker import testing
from pybroker.model import TopicPartition
from pybroker.replication import scrub
from pybroker.replication.disks.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, SCRUBBED
from pybroker.testing import BrokerHandle
from tests.harness import ROOT, until

PAGE = ROOT / "docs/on-disk.md"
SETTINGS = {
    "log.segment.delete.delay.ms": 60_000,  # removed files stay long enough to be seen
    "log.cleaner.backoff.ms": 50,
    "log.scrub.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
}
SMALL = {"segment.bytes": 4096, "index.interval.bytes": 64}
PLACES = (  # varying parts of a name, in the order in which they are replaced
    (r"\b[0-9a-f]{32}\b", "HEX"),
    (r"\b[0-9]{20}\b", "BASE"),
    (r"(?<=\.log\.)[0-9]+(?=\.damaged)", "POSITION"),
    (r"(?<=sqlite\.)[0-9]{13}(?=\.damaged)", "MS"),
    (r"(?<=scrub-checkpoint\.)\w{8}(?=\.tmp)", "RANDOM"),
    (r"^[\w.]+-[0-9]+$|^[\w.]+-[0-9]+(?=\.HEX-)", "TOPIC-PARTITION"),
)


def pattern_of(name: str) -> str:
    """Replace the parts of a name that vary between brokers."""
    for what, place in PLACES:
        name = re.sub(what, place, name)
    return name


def named() -> set[str]:
    """The patterns of all names on the page: in backticks, and in the picture of a log dir."""
    text = PAGE.read_text()
    picture = re.findall(r"^ {6,8}([\w.-]+)", text, re.M)
    return {pattern_of(name.rstrip("/")) for name in [*re.findall(r"`([^`\s]+)`", text), *picture]}


def is_named(name: str, on_page: set[str]) -> bool:
    """True if the page names it; a file that is replaced as a whole is NAME.tmp at first, as the page says."""
    pattern = pattern_of(name)
    return pattern in on_page or (pattern.endswith(".tmp") and pattern.removesuffix(".tmp") in on_page)


class Watch:
    """Records every name that appears below a directory, even for a moment (inotify(7))."""

    MADE, MOVED_HERE, CLOSE_ON_EXEC = 0x100, 0x80, 0o2000000
    EVENT = struct.Struct("iIII")

    def __init__(self, directory: Path) -> None:
        self.seen: set[str] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(self.CLOSE_ON_EXEC)
        self._watched: dict[int, Path] = {}
        self._end, self._ending = os.pipe()
        self._add(directory)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ending)
        self._thread.join()
        os.close(self._end)
        os.close(self._inotify)

    def _add(self, directory: Path) -> None:
        number = self._libc.inotify_add_watch(self._inotify, bytes(directory), self.MADE | self.MOVED_HERE)
        if number < 0:
            return  # already removed
        self._watched[number] = directory
        for path in list(directory.iterdir()):  # created before the watch
            self._found(path)

    def _found(self, path: Path) -> None:
        self.seen.add(path.name)
        if path.is_dir():
            self._add(path)

    def _read(self) -> None:
        while self._inotify in select.select([self._inotify, self._end], [], [])[0]:
            data, at = os.read(self._inotify, 1 << 16), 0
            while at < len(data):
                number, _, _, length = self.EVENT.unpack_from(data, at)
                at += self.EVENT.size + length
                if name := data[at - length : at].rstrip(b"\0"):
                    self._found(self._watched[number] / os.fsdecode(name))


@pytest.fixture
def life(tmp_path: Path) -> Iterator[tuple[BrokerHandle, Watch, Path]]:
    """A broker whose directory is watched from before its first file."""
    data = tmp_path / "data"
    data.mkdir()
    with Watch(data) as watch, testing.broker(settings=SETTINGS, data_dir=str(data)) as broker:
        yield broker, watch, next(data.rglob("meta.properties")).parent


def fill(broker: BrokerHandle, topic: str) -> None:
    """Write several segments of records, some by an idempotent producer, with each key many times."""
    for number in range(12):
        broker.produce(topic, *(f"{number} {'x' * 100}" for _ in range(30)), key=str(number % 2))
    with pybroker.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"once", partition=0)


def is_there(directory: Path, *globs: str) -> Callable[[], bool]:
    return lambda: all(any(directory.rglob(glob)) for glob in globs)


def test_the_page_names_what_a_broker_makes(life: tuple[BrokerHandle, Watch, Path]) -> None:
    """The page names all files of topics, compaction, retention, deletion, scrubbing, a full disk and a crash."""
    broker, watch, home = life
    for topic, config in (
        ("plain", {"retention.bytes": 4096}),
        ("compacted", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
        ("cut", {}),
        ("gone", {}),
    ):
        broker.create_topic(topic, config=SMALL | config)
        fill(broker, topic)
    reader = {"group_id": "readers", "auto_offset_reset": "earliest"}
    with pybroker.Consumer(bootstrap_servers=broker.bootstrap_servers, **reader) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(["compacted"])
        consumer.poll(10_000)
        consumer.commit()
    with pybroker.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topic("gone")
        admin.delete_records({TopicPartition("cut", 0): 5})
    until("segments and a topic are removed", is_there(home, "plain-0/*.log.deleted", "gone-*-delete"))
    until("a log is compacted", is_there(home, "cleaner-offset-checkpoint"))
    written = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, SCRUBBED)
    until("checkpoints are written", is_there(home, *written))
    scrub.ask(home)
    with broker.faults.full_disk():
        with pytest.raises(pybroker.KafkaError):
            broker.produce("plain", "no room")
        until("the log dir is full", lambda: "full-disk-reserve.new" in watch.seen)
    broker.restart()
    broker.kill()

    damaged = sorted((home / "cut-0").glob("*.log"))[1]  # more segments follow
    damaged.write_bytes(b"\xff" + damaged.read_bytes()[1:])
    last = max((home / "plain-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(range(256)) * 64)
    (home / "recovery-point-offset-checkpoint").unlink()
    (home / "coordination.sqlite").write_bytes(b"no database" * 999)
    broker.start()
    broker.stop()

    assert not list(home.rglob("*.txnindex")), "no transaction was aborted"
    for expected in (
        ".kafka_cleanshutdown", ".lock", "coordination.sqlite-wal", "BASE.log.swap", "BASE.log.cleaned",
        "BASE.log.POSITION.damaged", "coordination.sqlite.MS.damaged", "damage-checkpoint", "BASE.snapshot",
        "leader-epoch-checkpoint.tmp", "scrub-checkpoint.RANDOM.tmp", "full-disk-reserve.new",
        "TOPIC-PARTITION.HEX-delete",
    ):  # fmt: skip
        assert expected in {pattern_of(name) for name in watch.seen}, f"the broker created no {expected}"
    on_page = named()
    assert not sorted(name for name in watch.seen - {home.name} if not is_named(name, on_page))


def test_the_page_names_what_brokers_of_a_cluster_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names all files of a cluster whose leader dies and returns; no broker has a coordination store."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # else an earlier one is kept
    with testing.cluster(settings=SETTINGS) as cluster:
        topic = cluster.create_topic("orders", config=SMALL)
        for _ in range(6):
            cluster.produce(topic, "x" * 1000)
        leader = cluster.leader(topic)
        cluster.kill(leader)
        cluster.produce(topic, "meanwhile")
        cluster.start(leader)
        cluster.wait_in_sync(topic)
        homes = [path.parent for path in tmp_path.rglob("meta.properties")]
        made = {path.name for home in homes for path in home.rglob("*")}
    assert len(homes) == 3 and {"00000000000000000000.log", "leader-epoch-checkpoint"} <= made
    on_page = named()
    assert not sorted(name for name in made if not is_named(name, on_page))
    assert not [name for name in made if name.startswith("coordination.sqlite")]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("00000000000000001234.log", True),
        ("anything-7", True),
        ("leader-epoch-checkpoint.tmp", True),
        ("00000000000000001234.bloom", False),
        ("quota-checkpoint", False),
        ("anything-7.0123456789abcdef0123456789abcdef-lost", False),
    ],
)
def test_the_rule_itself(name: str, known: bool) -> None:
    """The test finds a name that is not on the page."""
    assert is_named(name, named()) is known
