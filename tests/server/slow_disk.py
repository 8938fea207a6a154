"""A broker at work on a disk that can be slowed, and clients of other partitions whose requests are timed meanwhile.

`Work` repeats everything that makes a file call: appends that roll, flushes, retention, compaction, topics created and
deleted, DeleteRecords, look-ups by time, reads, indexes that are rebuilt. Its files have "slow" in their paths, or are
checkpoints: a failpoint slows only those. `Meter` sends the requests that must not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pybroker import core, errors
from pybroker.protocol import messages as m
from pybroker.protocol.compression import compress, decompress
from pybroker.replication.disks.disk_space import RESERVE
from tests.groups.members import Member
from tests.server.live import BASE_MS, Live, Wire, batch, fetch_fields

DELAY_MS = 2000
PAUSE_S = 0.003
"""Seconds between two timed requests."""
ROUND_S = 0.02
"""Seconds between two rounds of one kind of work."""
SESSION_MS = 300_000
LARGE = 1_200_000
SETS = [
    "num.network.threads=2",
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=1",
    "log.cleaner.enable=false",
    "log.retention.check.interval.ms=3600000",
]
NO_MOVE = "no replica moves to another log dir here: test_moved_log_dirs slows that"
NEVER = {
    "metadata.sync": "partition.metadata is not made durable: an open after a power cut makes it again",
    **dict.fromkeys(("move.copy", "move.sync", "move.rename", "move.leave"), NO_MOVE),
}
"""Failpoints that no call reaches, with the reason."""
CACHED = {"segment.send": "a thread of the log dir has read what is sent: sendfile copies from the page cache"}
"""Failpoints at which no call waits for a disk, with the reason; test_cold checks that."""
OWN = ("append.before", "append.after", "segment.reserve", "segment.write")
"""The failpoints that an append itself passes when it does not roll."""
KINDS = ("Produce", "Fetch", "Metadata", "Heartbeat")
SAME = "Produce to the same partition"
SAMPLES = 250
"""Requests to time of each kind, on two reactors. Each reactor waits once per log before it knows that the disk is
slow, so reactors append to and read only one log where that is slowed."""
PATIENCE_S = 30


def under(point: str) -> str:
    """The part of a path that selects the files this failpoint slows."""
    if point == "disk.reserve":
        return RESERVE
    return "-offset-checkpoint" if point.startswith("checkpoint.") else "slow"


class Work:
    """Repeats every kind of file work, each kind in its own task, so that one stuck in a file call delays no other."""

    def __init__(self, live: Live) -> None:
        self.live = live
        assert live.broker is not None and live.broker.replicas is not None
        self.replicas = live.broker.replicas
        self.tasks: list[asyncio.Task[None]] = []
        self.failures: list[BaseException] = []
        self._stopping = False
        self._fresh: list[asyncio.Task[None]] = []
        self._fresh_over = asyncio.Event()
        self._numbers = itertools.count()
        self.steady = ""

    def log(self, topic: str) -> core.Partition:
        replica = self.replicas.get(topic, 0)
        assert replica is not None and replica.log is not None
        return replica.log

    async def start(self) -> None:
        wire = await self.live.connect()
        await wire.create("slow-flushed", segment_bytes="20000")
        await wire.create("slow-aged", segment_bytes="2000", file_delete_delay_ms="0", retention_ms="1")
        await wire.create("slow-renamed", segment_bytes="2000", file_delete_delay_ms="1", retention_bytes="1")
        await wire.create("slow-large", segment_bytes="2000000", file_delete_delay_ms="0", retention_bytes="1")
        await wire.create("slow-compacted", segment_bytes="2000", cleanup_policy="compact", file_delete_delay_ms="0")
        await wire.create("slow-damaged", segment_bytes="2000", index_interval_bytes="1", file_delete_delay_ms="1")
        await wire.create("slow-cut")
        rounds: list[Callable[[Wire], Awaitable[object]]] = [
            self.flush, self.age, self.rename, self.large, self.compact, self.repair, self.cut, self.come_and_go,
            self.lack,
        ]  # fmt: skip
        for work in rounds:
            wire = await self.live.connect()
            self.tasks.append(asyncio.create_task(self._repeat(work, wire, lambda: self._stopping)))

    async def renew(self) -> None:
        """Start new requests that make file calls themselves, on logs that were never slow, on each reactor. One log is
        flushed and retained while appends to it are timed."""
        rolled, self.steady = (f"slow-{kind}-{next(self._numbers)}" for kind in ("rolled", "steady"))
        wires = [await self.live.connect() for _ in range(7)]
        await wires[0].create(rolled, segment_bytes="2000")
        await wires[0].create(self.steady, retention_ms="1", file_delete_delay_ms="0")
        await wires[0].produce(self.steady, batch(b"v"))
        await wires[0].produce(rolled, batch(bytes(900)))
        self._fresh_over.clear()

        async def append(wire: Wire) -> None:
            assert (await wire.produce(rolled, batch(bytes(900)))).error_code == 0

        async def read(wire: Wire) -> None:
            await wire.call("Fetch", 12, **fetch_fields(rolled, 0))

        async def look_up(wire: Wire) -> None:
            kind = m.ListOffsetsRequest.Topics
            topic = kind(name=rolled, partitions=[kind.Partitions(partition_index=0, timestamp=BASE_MS)])
            await wire.call("ListOffsets", 7, replica_id=-1, topics=[topic])

        self._fresh = [
            asyncio.create_task(self._repeat(work, wire, self._fresh_over.is_set))
            for wire, work in zip(wires, (append, append, read, read, look_up, look_up, self.keep_up), strict=True)
        ]

    async def rest(self) -> None:
        """End the requests that renew() started, and close their connections."""
        self._fresh_over.set()
        await asyncio.gather(*self._fresh)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self.tasks)
        if self.failures:
            raise self.failures[0]

    async def _repeat(self, work: Callable[[Wire], Awaitable[object]], wire: Wire, is_over: Callable[[], bool]) -> None:
        try:
            while not is_over():
                await work(wire)
                await asyncio.sleep(ROUND_S)
        except BaseException as problem:
            self.failures.append(problem)

    # -- kinds of work -------------------------------------------------------------------------------------------------

    async def lack(self, wire: Wire) -> None:
        """Run the chore that found no space: the broker reserves disk space again and finds some."""
        assert await asyncio.to_thread(self.replicas.log_dirs[0].space.lacks)

    async def keep_up(self, wire: Wire) -> None:
        """Do all work of the chores on the log that is appended to meanwhile."""
        log = self.log(self.steady)

        def work() -> None:
            epoch = log.leader_epoch + 1
            log.become_leader(epoch, epoch)
            log.flush()
            log.enforce_retention(2 * BASE_MS)
            log.write_checkpoints()

        await asyncio.to_thread(work)

    async def flush(self, wire: Wire) -> None:
        """Start a leader epoch, append as a producer, roll so that a snapshot is written, and flush."""
        log = self.log("slow-flushed")

        def work() -> None:
            epoch = log.leader_epoch + 1
            log.become_leader(epoch, epoch)
            number = next(self._numbers)
            log.append(batch(b"v", producer_id=number, producer_epoch=0, base_sequence=0), now_ms=1)
            log.roll()
            log.append(batch(b"v"), now_ms=1)
            log.flush()
            log.write_checkpoints()

        await asyncio.to_thread(work)

    async def age(self, wire: Wire) -> None:
        """Run retention when all records are too old: it makes a new segment and removes the others."""
        log = self.log("slow-aged")

        def work() -> None:
            log.append(batch(b"v", producer_id=next(self._numbers), producer_epoch=0, base_sequence=0), now_ms=1)
            log.enforce_retention(2 * BASE_MS)

        await asyncio.to_thread(work)

    async def rename(self, wire: Wire) -> None:
        log = self.log("slow-renamed")

        def work() -> None:
            log.append(batch(bytes(900)), now_ms=1)
            log.roll()
            log.append(batch(bytes(900)), now_ms=1)
            log.enforce_retention(1)

        await asyncio.to_thread(work)

    async def large(self, wire: Wire) -> None:
        """Delete a large segment while a reader reads it."""
        log = self.log("slow-large")

        def work() -> None:
            start = log.log_end_offset
            log.append(batch(bytes(LARGE // 2)), now_ms=1)
            log.append(batch(bytes(LARGE // 2)), now_ms=1)
            log.roll()
            log.append(batch(b"v"), now_ms=1)
            held = log.read(start, 1000).slice
            log.enforce_retention(1)
            assert held is not None
            held.close()

        await asyncio.to_thread(work)

    async def compact(self, wire: Wire) -> None:
        log = self.log("slow-compacted")

        def work() -> None:
            for _ in range(3):
                log.append(batch(bytes(900), key=b"k"), now_ms=1)
            log.roll()
            log.flush()
            core.clean(
                log, first_dirty=log.log_start_offset, end=log.log_end_offset, now_ms=1, delete_retention_ms=0,
                map_bytes=1 << 20, compress=compress, decompress=lambda codec, data: decompress(codec, data, 1 << 20),
            )  # fmt: skip

        await asyncio.to_thread(work)

    async def repair(self, wire: Wire) -> None:
        """Read through a sealed segment whose index is gone, so that the flusher rebuilds it."""
        log = self.log("slow-damaged")

        def work() -> None:
            start = log.log_end_offset
            for _ in range(4):
                log.append(batch(bytes(300)), now_ms=1)
            log.roll()
            log.flush()
            Path(log.directory, f"{start:020}.index").unlink()
            found = log.read(start + 1, 100).slice
            assert found is not None
            found.close()
            log.set_log_start(start)
            log.enforce_retention(1)

        await asyncio.to_thread(work)

    async def cut(self, wire: Wire) -> None:
        await asyncio.to_thread(self.log("slow-cut").append, batch(b"v"), now_ms=1)
        kind = m.DeleteRecordsRequest.Topics
        topic = kind(name="slow-cut", partitions=[kind.Partitions(partition_index=0, offset=-1)])
        await wire.call("DeleteRecords", 2, topics=[topic], timeout_ms=60_000)

    async def come_and_go(self, wire: Wire) -> None:
        name = f"slow-new-{next(self._numbers)}"
        assert (await wire.create(name, file_delete_delay_ms="0")).error_code == 0
        await wire.call("DeleteTopics", 5, topic_names=[name], timeout_ms=60_000)


class Meter:
    """Measures requests that have nothing to do with the slow files, in ms by kind."""

    def __init__(self, work: Work, others: list[Wire], members: list[Member]) -> None:
        self.work, self.others, self.members = work, others, members
        self.took: dict[str, list[float]] = defaultdict(list)
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, kinds: Iterable[str]) -> None:
        """Send requests of these kinds on each reactor."""
        self.took = defaultdict(list)
        self._over.clear()
        for turn in range(2):
            produce, same, fetch, metadata = self.others[turn::2]
            asked: dict[str, Callable[[], Awaitable[int]]] = {
                "Produce": partial(self._produce, produce, "quick"),
                SAME: partial(self._produce, same, self.work.steady),
                "Fetch": partial(self._fetch, fetch),
                "Metadata": partial(self._metadata, metadata),
                "Heartbeat": self.members[turn].heartbeat,
            }
            self._tasks += [asyncio.create_task(self._repeat(kind, asked[kind])) for kind in kinds]

    async def stop(self) -> None:
        self._over.set()
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def _repeat(self, kind: str, ask: Callable[[], Awaitable[int]]) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            assert await ask() == 0, f"{kind} was refused"
            self.took[kind].append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(PAUSE_S)

    async def _produce(self, wire: Wire, topic: str) -> int:
        return int((await wire.produce(topic, batch(b"v"))).error_code)

    async def _fetch(self, wire: Wire) -> int:
        return int((await wire.fetch("quick", 0, partition_max_bytes=1000)).error_code)

    async def _metadata(self, wire: Wire) -> int:
        kind = m.MetadataRequest.Topics
        return int((await wire.call("Metadata", 12, topics=[kind(name="quick")])).topics[0].error_code)

    def fewest(self, kinds: Iterable[str]) -> int:
        """The number of timed requests of the kind that has fewest."""
        for task in self._tasks:
            if task.done():
                task.result()
        return min(len(self.took[kind]) for kind in kinds)


class Trial:
    """A trial of one failpoint after the other: file calls slow at it must not delay other requests."""

    def __init__(self, work: Work, meter: Meter) -> None:
        self.work, self.meter = work, meter
        self.core = work.replicas._core

    async def put_to(self, point: str, patience_s: float = PATIENCE_S) -> dict[str, list[float]]:
        """Slow everything at this failpoint; return the times of each kind of request. Raise AssertionError if nothing
        reaches the failpoint, or if too few requests are served."""
        kinds = KINDS if point in OWN else (*KINDS, SAME)
        await self.work.renew()
        self.core.arm(point, "sleep", DELAY_MS, times=1_000_000, under=under(point))
        try:
            assert await self.comes_by(patience_s), f"nothing reaches {point}"
            self.meter.start(kinds)
            began = time.monotonic()
            while time.monotonic() - began < 1.1 * DELAY_MS / 1000 or self.meter.fewest(kinds) < SAMPLES:
                counts = {kind: len(self.meter.took[kind]) for kind in kinds}
                assert time.monotonic() - began < patience_s, f"{point}: too few are served: {counts}"
                await asyncio.sleep(0.02)
        finally:
            self.core.disarm()
            await self.meter.stop()
            await self.work.rest()
        return {kind: self.meter.took[kind] for kind in kinds}

    async def comes_by(self, patience_s: float) -> bool:
        """Wait until a thread sleeps in the armed failpoint; False if none does in that time."""
        until = time.monotonic() + patience_s
        while not self.core.sleeping and time.monotonic() < until:
            if self.work.failures:
                raise self.work.failures[0]
            await asyncio.sleep(0.001)
        return self.core.sleeping > 0


@contextlib.asynccontextmanager
async def trial(home: Path) -> AsyncIterator[Trial]:
    """A broker on its own event loop, so that requests waiting for that loop are timed too."""
    live = Live(home, SETS)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="broker")
    thread.start()

    async def there(work: Coroutine[Any, Any, object]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        await there(live.start())
        others = [await live.connect() for _ in range(8)]  # reactors take them in turn
        for name in ("quick", "t"):
            await others[0].create(name)
        await others[0].produce("quick", batch(b"v"))
        members = [await member(await live.connect(), group) for group in ("g", "h")]
        work = Work(live)
        await work.start()
        yield Trial(work, Meter(work, others, members))
        await work.stop()
    finally:
        live.hang_up()
        await there(live.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def member(wire: Wire, group: str) -> Member:
    """Join a group as its only member."""
    await wire.call("FindCoordinator", 3, key=group, key_type=0)
    made = Member(wire, group, session_ms=SESSION_MS)
    while (error := await made.join()) == errors.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0.01)
    assert error == 0 and (await made.sync({}))[0] == 0
    return made


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]
