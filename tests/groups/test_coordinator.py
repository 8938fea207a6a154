"""The coordinator on its own logs: what it loads, keeps and forgets, and its answers while it loads."""

from __future__ import annotations

import asyncio
import errno
import struct

import pytest

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.errors import KafkaError
from pybroker.groups.records import offset_record
from pybroker.model import TopicPartition
from pybroker.state_log.placement import partition_of
from tests.groups.logs import T0, T1, U0, Bench, at
from tests.harness import eventually

MINUTE_MS = 60_000


async def test_one_partition_that_is_loading_holds_up_nobody_else(bench: Bench) -> None:
    """Groups of the loading partition get COORDINATOR_LOAD_IN_PROGRESS, NONE or REBALANCE_IN_PROGRESS."""
    slow, quick = "g0", next(f"g{n}" for n in range(99) if partition_of(f"g{n}", 4) != partition_of("g0", 4))
    await bench.lead(bench.groups)
    await bench.groups.offsets.commit(slow, "", None, -1, {T0: at(5)})
    bench.groups.resign_all()
    gate = bench.logs[partition_of(slow, 4)].gate
    gate.clear()
    groups = bench.fresh()
    loading = asyncio.get_running_loop().create_task(bench.lead(groups))
    try:
        await asyncio.sleep(0)  # the others are read on their own threads
        await eventually("one loads", lambda: sum(shard.loading for shard in groups._shards.values()) == 1)
        assert await groups.offsets.commit(quick, "", None, -1, {T0: at(6)}) == {T0: 0}
        for call, code in (
            (lambda: groups.offsets.commit(slow, "", None, -1, {T0: at(7)}), errors.COORDINATOR_LOAD_IN_PROGRESS),
            (lambda: groups.find(slow), errors.COORDINATOR_LOAD_IN_PROGRESS),
            (lambda: groups.members.sync(slow, "m", None, 1, {}, None, None), errors.REBALANCE_IN_PROGRESS),
        ):
            with pytest.raises(KafkaError) as refused:
                result = call()
                if asyncio.iscoroutine(result):
                    await result
            assert refused.value.code == code
        assert groups.members.heartbeat(slow, "m", None, 1) == errors.NONE
        await groups.forget_topic("u")
    finally:
        gate.set()
    await loading
    found = groups.find(slow)
    assert found is not None and found.offsets[T0].offset == 5
    groups.resign_all()


async def test_a_topic_deleted_while_its_offsets_are_read_is_forgotten_after_that(bench: Bench) -> None:
    await bench.lead(bench.groups)
    await bench.groups.offsets.commit("g", "", None, -1, {T0: at(1), U0: at(2)})
    bench.groups.resign_all()
    log = bench.logs[partition_of("g", 4)]
    log.gate.clear()
    log.asked.clear()
    groups = bench.fresh()
    loading = asyncio.get_running_loop().create_task(bench.lead(groups))
    assert await asyncio.to_thread(log.asked.wait, 10)
    await groups.forget_topic("u")
    log.gate.set()
    await loading
    again = bench.fresh()
    await bench.lead(again)
    for loaded in (groups, again):
        found = loaded.find("g")
        assert found is not None and list(found.offsets) == [T0]
        loaded.resign_all()


async def test_offsets_expire_and_a_group_without_any_goes(bench: Bench) -> None:
    """Offsets expire offsets.retention.minutes after the last commit of a group without members, and not before."""
    groups = bench.fresh("offsets.retention.minutes=1")
    await bench.lead(groups)
    now = wall_ms()
    await groups.offsets.commit("g", "", None, -1, {T0: at(1, now), T1: at(2, now + 500)})
    assert await groups.expire(now + MINUTE_MS - 1) == 0
    assert await groups.expire(now + MINUTE_MS) == 1
    found = groups.find("g")
    assert found is not None and list(found.offsets) == [T1]
    assert await groups.expire(now + MINUTE_MS + 500) == 1
    assert groups.find("g") is None
    groups.resign_all()
    again = bench.fresh()
    await bench.lead(again)
    assert list(again.entries()) == []
    again.resign_all()


async def test_offsets_expire_by_themselves(bench: Bench) -> None:
    """The check every offsets.retention.check.interval.ms finds an old commit."""
    groups = bench.fresh("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=20")
    await bench.lead(groups)
    await groups.offsets.commit("g", "", None, -1, {T0: at(1, wall_ms() - MINUTE_MS)})
    await eventually("it has expired", lambda: groups.find("g") is None)
    groups.resign_all()


def in_transaction(group: str, producer_id: int, **offsets: int) -> bytes:
    """The batch of offsets that a transactional producer sends: `t0=5` is offset 5 in t-0."""
    pairs = [offset_record(group, TopicPartition(name[:-1], int(name[-1])), at(n)) for name, n in offsets.items()]
    return core.build_batch([(0, key, value, ()) for key, value in pairs], attributes=0x10, producer_id=producer_id,
                            producer_epoch=0)  # fmt: skip


def marker(producer_id: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction: its key has a version and a type, 0 abort and 1 commit."""
    key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
    return core.build_batch([(0, key, value, ())], attributes=0x30, producer_id=producer_id, producer_epoch=0)


async def test_offsets_of_a_transaction_count_when_it_is_committed(bench: Bench) -> None:
    """Transactional offsets count once committed, unless a plain commit is later; aborted and open ones do not."""
    log = bench.logs[partition_of("g", 4)]
    log.become_follower(2, 0, 0)
    for batch in (
        in_transaction("g", 1, t0=11, t1=11, u0=11),
        core.build_batch([(0, *offset_record("g", T1, at(12)), ())]),
        marker(1, commit=True),
        in_transaction("g", 2, t0=22),
        marker(2, commit=False),
        in_transaction("g", 3, t0=33, t3=33),
    ):
        log.append_replica(struct.pack(">q", log.log_end_offset) + batch[8:12] + struct.pack(">i", 0) + batch[16:])
    log.become_leader(0, 0)
    await bench.lead(bench.groups)
    found = bench.groups.find("g")
    assert found is not None
    assert {key: committed.offset for key, committed in found.offsets.items()} == {T0: 11, T1: 12, U0: 11}
    open_ = {T0, TopicPartition("t", 3)}
    assert found.unstable == open_
    assert await bench.groups.offsets.forget("g", [T0]) == errors.NONE
    bench.groups.resign_all()
    again = bench.fresh()
    await bench.lead(again)
    found = again.find("g")
    assert found is not None and found.unstable == open_ - {T0} and set(found.offsets) == {T1, U0}
    await again.forget_topic("t")
    await again.forget_topic("u")
    assert again.find("g") is None
    again.resign_all()


@pytest.mark.parametrize("codec", range(5))
async def test_the_records_can_be_compressed(bench: Bench, codec: int) -> None:
    """Each codec of offsets.topic.compression.codec is written, and read at the next start."""
    groups = bench.fresh(f"offsets.topic.compression.codec={codec}")
    await bench.lead(groups)
    assert await groups.offsets.commit("g", "", None, -1, {T0: at(1), T1: at(2)}) == {T0: 0, T1: 0}
    groups.resign_all()
    piece = bench.logs[partition_of("g", 4)].read(0, 1 << 20).slice
    assert [header.codec for _, header in core.iter_batches(piece.tobytes())] == [codec]
    piece.close()
    again = bench.fresh()
    await bench.lead(again)
    found = again.find("g")
    assert found is not None and {k: c.offset for k, c in found.offsets.items()} == {T0: 1, T1: 2}
    again.resign_all()


async def test_a_log_that_cannot_be_read_is_one_partition_less(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups of an unreadable log get NOT_COORDINATOR, and the others are served."""
    bad = bench.logs[partition_of("g", 4)]
    await bad.append(core.build_batch([(0, b"\0\2nonsense", b"\0\3", ())]), 0)

    def fail(*_: object, **__: object) -> core.Read:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(bad, "read", fail, raising=False)
    await bench.lead(bench.groups)
    with pytest.raises(KafkaError) as refused:
        bench.groups.find("g")
    assert refused.value.code == errors.NOT_COORDINATOR
    other = next(f"g{n}" for n in range(99) if partition_of(f"g{n}", 4) != bad.key.partition)
    assert await bench.groups.offsets.commit(other, "", None, -1, {T0: at(1)}) == {T0: 0}
    bench.groups.resign_all()


async def test_a_log_that_takes_nothing_is_told_to_the_client(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a commit gets NOT_COORDINATOR and is not made; with space again the next one is."""
    await bench.lead(bench.groups)
    log = bench.logs[partition_of("g", 4)]

    def full(records: core.Bytes, now_ms: int, leader_epoch: int, acks: int) -> core.Appended:
        raise core.LogError(errors.KAFKA_STORAGE_ERROR, "no space left")

    monkeypatch.setattr(log, "append", full)
    assert await bench.groups.offsets.commit("g", "", None, -1, {T0: at(1)}) == {T0: errors.NOT_COORDINATOR}
    assert bench.groups.find("g") is None
    monkeypatch.undo()
    assert await bench.groups.offsets.commit("g", "", None, -1, {T0: at(2)}) == {T0: 0}
    bench.groups.resign_all()
