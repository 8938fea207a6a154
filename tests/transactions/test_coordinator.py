"""The transaction coordinator: what it stores, answers and sends, and what a next coordinator finds in its log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pybroker import core, errors
from pybroker.decisions.transaction import EPOCH_LAST, EPOCH_PER_TRANSACTION, ProducerIdAndEpoch, Transaction, TxnState
from pybroker.transactions import records
from pybroker.transactions.coordinator import WRITE_TIMEOUT_S
from tests.transactions.kit import BROKER, T0, T1, TIMEOUT_MS, TX, U0, World
from tests.virtual import settle, story

SOON_S = 0.05
"""Time for markers to be sent, not for those that are put off."""


async def begun(world: World, *keys: object) -> ProducerIdAndEpoch:
    """A producer with an open transaction on these partitions."""
    await world.lead()
    me = await world.init()
    await world.coordinator.add_partitions(TX, me, keys or [T0, T1])  # type: ignore[arg-type]
    return me


@story
async def test_a_transaction_from_its_begin_to_its_end(world: World) -> None:
    """The decision is answered before any marker is written; the completion follows the last one."""
    me = await begun(world)
    held = asyncio.Event()

    async def slow(*asked: object) -> object:
        await held.wait()
        return await ask(*asked)  # type: ignore[arg-type]

    ask, world.queues._ask = world.queues._ask, slow  # type: ignore[assignment, method-assign]
    assert await world.coordinator.end_transaction(TX, me, True) == me
    assert world.state == "PrepareCommit" and not world.sent
    assert await world.code(world.coordinator.add_partitions(TX, me, [T0])) == errors.CONCURRENT_TRANSACTIONS
    held.set()
    await asyncio.sleep(SOON_S)
    assert world.state == "CompleteCommit"
    assert world.sent == [(BROKER, 10, 0, 0, True, T0), (BROKER, 10, 0, 0, True, T1)]
    assert world.log.transactions()[TX].state is TxnState.COMPLETE_COMMIT
    await world.coordinator.add_partitions(TX, me, [U0])
    assert world.state == "Ongoing"


@story
async def test_two_clients_begin_with_a_new_id_at_once(world: World) -> None:
    """Fault 23: one of them gets the producer id, the other has to ask again and fences it."""
    await world.lead()
    found = await asyncio.gather(world.init(), world.init(), return_exceptions=True)
    given = [each for each in found if isinstance(each, ProducerIdAndEpoch)]
    assert [each.epoch for each in given] == list(range(len(given)))
    assert len({each.id for each in given}) == 1
    assert len({each.producer.id for each in world.log.transactions().values()}) == 1


@story
async def test_requests_that_name_no_coordinated_id(world: World) -> None:
    me = ProducerIdAndEpoch(1, 0)
    assert await world.code(world.init()) == errors.NOT_COORDINATOR
    world.coordinator.partitions = 0
    assert await world.code(world.init()) == errors.COORDINATOR_NOT_AVAILABLE
    world.coordinator.partitions = 1
    await world.lead()
    assert await world.code(world.coordinator.end_transaction("", me, True)) == errors.INVALID_REQUEST
    assert await world.code(world.coordinator.end_transaction("x", me, True)) == errors.INVALID_PRODUCER_ID_MAPPING
    for timeout_ms in (0, -1, 900_001):
        asked = world.coordinator.init_producer(TX, timeout_ms, None)
        assert await world.code(asked) == errors.INVALID_TRANSACTION_TIMEOUT


@story
async def test_too_few_replicas_use_up_no_epoch(world: World) -> None:
    """Fault 18: while __transaction_state has too few replicas in sync, InitProducerId is refused as often as it is
    asked; then the client gets the next epoch."""
    await world.lead()
    assert (await world.init()).epoch == 0
    world.log.refuses = errors.NOT_ENOUGH_REPLICAS
    for _ in range(5):
        assert await world.code(world.init()) == errors.COORDINATOR_NOT_AVAILABLE
        assert await world.code(world.init(name="new")) == errors.COORDINATOR_NOT_AVAILABLE
    world.log.refuses = None
    assert (await world.init()).epoch == 1
    assert (await world.init(name="new")).epoch == 0


@story
async def test_a_write_that_times_out_and_then_succeeds(world: World) -> None:
    """Fault 16: the client got COORDINATOR_NOT_AVAILABLE, its retries wait, and once the record is committed they find
    what the log has, as a next coordinator does."""
    me = await begun(world)
    world.log.fetched = False
    ended = asyncio.get_running_loop().create_task(world.code(world.coordinator.end_transaction(TX, me, True)))
    await asyncio.sleep(WRITE_TIMEOUT_S + 1)
    assert await ended == errors.COORDINATOR_NOT_AVAILABLE
    assert await world.code(world.coordinator.end_transaction(TX, me, False)) == errors.CONCURRENT_TRANSACTIONS
    assert not world.sent, "the decision is not committed yet"
    world.log.fetched = True
    await world.log.move()
    await settle()
    assert world.state == world.log.transactions()[TX].state.label == "CompleteCommit"
    assert await world.coordinator.end_transaction(TX, me, True) == me


@story
async def test_a_next_coordinator_finishes_what_was_decided(world: World) -> None:
    """Faults 11 and 26: a coordinator that dies after the decision, before, between or after its markers, is followed
    by one that sends them with its own epoch, and decides the same."""
    for number, lost in enumerate([{T0, T1}, {T1}, set()]):
        world.answers = lambda broker, key, lost=lost: errors.NOT_LEADER_OR_FOLLOWER if key in lost else 0  # type: ignore[misc]
        await world.lead(2 * number)
        me = await world.init()
        await world.coordinator.add_partitions(TX, me, [T0, T1])
        await world.coordinator.end_transaction(TX, me, number % 2 == 0)
        await asyncio.sleep(SOON_S)
        world.coordinator.resign(0, 2 * number + 1)
        world.sent.clear()
        world.answers = lambda broker, key: 0
        world.fresh()
        await world.lead(2 * number + 1)
        await asyncio.sleep(SOON_S)
        commit = number % 2 == 0
        assert world.state == ("CompleteCommit" if commit else "CompleteAbort")
        wanted = {(BROKER, me.id, me.epoch, 2 * number + 1, commit, key) for key in (T0, T1)}
        assert set(world.sent) == (wanted if lost else set())


@story
async def test_nothing_is_sent_that_a_next_leader_may_lack(world: World) -> None:
    """Fault 21: a decision above the high watermark is loaded, and its markers wait until it is committed."""
    me = await begun(world)
    world.log.fetched = False
    ended = asyncio.get_running_loop().create_task(world.code(world.coordinator.end_transaction(TX, me, True)))
    await settle()
    world.fresh()
    world.elect(1)
    await settle()
    assert await world.code(world.init()) == errors.COORDINATOR_LOAD_IN_PROGRESS and not world.sent
    world.log.fetched = True
    await world.log.move()
    await asyncio.sleep(SOON_S)
    assert world.state == "CompleteCommit" and len(world.sent) == 2
    ended.cancel()


@story
async def test_an_older_load_changes_nothing(world: World) -> None:
    """Fault 22: a resignation and another election come while the log is read; the first load shows nothing."""
    await begun(world)
    workers = world._workers
    world.fresh()
    workers.held = True  # type: ignore[attr-defined]
    world.elect(1)
    await settle()
    world.coordinator.resign(0, 2)
    workers.release()  # type: ignore[attr-defined]
    await settle()
    assert await world.code(world.init()) == errors.NOT_COORDINATOR
    workers.held = False  # type: ignore[attr-defined]
    await world.lead(3)
    assert world.state == "Ongoing"


@story
async def test_a_record_that_cannot_be_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Fault 20: a partition with a record of an unknown version is not served, and the log names the id and the
    version; it is read again, so that another coordinator may repair it with a tombstone."""
    await begun(world)
    key, value = records.record(world.log.transactions()[TX])
    assert value is not None
    await world.log.append(core.build_batch([(0, key, b"\0\7" + value[2:], ())]), 0, acks=-1)
    world.fresh()
    world.elect(1)
    with caplog.at_level(logging.ERROR):
        await settle()
    assert await world.code(world.init(name="another")) == errors.NOT_COORDINATOR
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("transactions not loaded")]
    assert "offset 2" in line and "'tx' has version 7" in line
    await world.log.append(core.build_batch([(0, *records.tombstone(TX), ())]), 0, acks=-1)
    await asyncio.sleep(30)
    assert await world.code(world.init(name="another")) == errors.NOT_COORDINATOR, "the record is still there"


@story
async def test_a_transaction_times_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Faults 7 and 25: a transaction that is older than its timeout is aborted under a higher epoch; its producer is
    fenced. A clock that goes back makes it later."""
    me = await begun(world)
    world.now -= 3_600_000
    await world.coordinator.abort_timed_out(world.now)
    assert world.state == "Ongoing"
    world.now += 3_600_000 + TIMEOUT_MS + 1
    await asyncio.sleep(11)
    assert world.state == "CompleteAbort"
    assert set(world.sent) == {(BROKER, me.id, 1, 0, False, key) for key in (T0, T1)}
    for commit in (True, False):
        assert await world.code(world.coordinator.end_transaction(TX, me, commit)) == errors.PRODUCER_FENCED
    assert (await world.init()) == ProducerIdAndEpoch(me.id, 2)
    assert [r for r in caplog.records if r.getMessage().startswith("transaction timed out")]


@story
async def test_an_id_expires(world: World) -> None:
    """Fault 24: an id that was not used is removed once its tombstone is stored; InitProducerId waits meanwhile, and
    then begins anew. If the tombstone cannot be stored, the id is as it was."""
    await world.lead()
    me = await world.init()
    world.now += 604_800_000
    world.log.refuses = errors.NOT_ENOUGH_REPLICAS
    assert await world.coordinator.expire(world.now) == 0
    world.log.refuses = None
    assert world.state == "Empty"
    world.log.fetched = False
    expired = asyncio.get_running_loop().create_task(world.coordinator.expire(world.now))
    await settle()
    assert await world.code(world.init()) == errors.CONCURRENT_TRANSACTIONS
    world.log.fetched = True
    await world.log.move()
    assert await expired == 1
    assert world.state == "none" and not world.log.transactions()
    assert await world.code(world.coordinator.end_transaction(TX, me, True)) == errors.INVALID_PRODUCER_ID_MAPPING
    assert (await world.init()) == ProducerIdAndEpoch(me.id + 1, 0)


@story
async def test_an_epoch_for_each_transaction(world: World) -> None:
    """A client of KIP-890 gets the next epoch with each answer, also when it asks again; an abort without partitions
    is stored, and sends no marker."""
    await world.lead()
    me = await world.init()
    await world.coordinator.add_partitions(TX, me, [T0], EPOCH_PER_TRANSACTION)
    one = await world.coordinator.end_transaction(TX, me, True, EPOCH_PER_TRANSACTION)
    await settle()
    assert one == ProducerIdAndEpoch(me.id, 1) == await world.coordinator.end_transaction(
        TX, me, True, EPOCH_PER_TRANSACTION
    )
    assert world.sent == [(BROKER, me.id, 1, 0, True, T0)]
    two = await world.coordinator.end_transaction(TX, one, False, EPOCH_PER_TRANSACTION)
    await settle()
    assert two == ProducerIdAndEpoch(me.id, 2) and world.state == "CompleteAbort" and len(world.sent) == 1


@story
async def test_the_id_changes_across_a_crash(world: World) -> None:
    """Fault 19: a coordinator that dies between a decision with epoch 32767 and its completion does not lose the new
    producer id that it promised."""
    await world.lead()
    me = await world.init()
    last = ProducerIdAndEpoch(me.id, EPOCH_LAST)
    world.coordinator.shard_of(TX).entries[TX].stored = Transaction(TX, last, TIMEOUT_MS, TxnState.EMPTY, world.now)
    world.answers = lambda broker, key: errors.NOT_LEADER_OR_FOLLOWER
    await world.coordinator.add_partitions(TX, last, [T0], EPOCH_PER_TRANSACTION)
    promised = await world.coordinator.end_transaction(TX, last, True, EPOCH_PER_TRANSACTION)
    assert promised.epoch == 0 and promised.id != me.id
    world.fresh()
    world.answers = lambda broker, key: 0
    await world.lead(1)
    await asyncio.sleep(SOON_S)
    for _ in range(2):
        again = await world.coordinator.end_transaction(TX, last, True, EPOCH_PER_TRANSACTION)
        assert again == promised
    assert world.sent == [(BROKER, me.id, 32767, 1, True, T0)]


@story
async def test_what_is_resigned_answers_nothing_later(world: World) -> None:
    """Fault 14: a coordinator that lost its partition neither answers a write as done, nor sends more markers."""
    me = await begun(world)
    world.log.fetched = False
    ended = asyncio.get_running_loop().create_task(world.code(world.coordinator.end_transaction(TX, me, True)))
    await settle()
    world.coordinator.resign(0, 1)
    assert await ended == errors.NOT_COORDINATOR
    world.log.fetched = True
    await world.log.move()
    await asyncio.sleep(10)
    assert not world.sent


@story
async def test_verification_does_not_wait_for_a_pending_change(world: World) -> None:
    """A batch that comes while partitions are being added is verified by what is stored."""
    me = await begun(world, T0)
    world.log.fetched = False
    adding = asyncio.get_running_loop().create_task(world.code(world.coordinator.add_partitions(TX, me, [T1])))
    await settle()
    assert world.coordinator.verify(TX, me, [T0, T1]) == {T0: 0, T1: errors.TRANSACTION_ABORTABLE}
    world.log.fetched = True
    await world.log.move()
    assert await adding == 0
    assert world.coordinator.verify(TX, me, [T0, T1]) == {T0: 0, T1: 0}


@story
async def test_the_completion_is_stored_at_last(world: World) -> None:
    """Fault 17: all markers are written and the completion cannot be stored; it is tried until it is."""
    me = await begun(world)
    await world.coordinator.end_transaction(TX, me, True)
    world.log.refuses = errors.NOT_ENOUGH_REPLICAS
    await asyncio.sleep(60)
    assert world.state == "PrepareCommit" and len(world.sent) == 2
    world.log.refuses = None
    await asyncio.sleep(11)
    assert world.state == "CompleteCommit" and len(world.sent) == 2


