"""The client's futures: a cancelled one, or one with a failing callback, affects no other request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest

from pybroker import errors
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.positions import Bell
from pybroker.client.net.channel import ClientChannel
from pybroker.client.net.loop import Loop
from pybroker.client.net.promise import Promise
from pybroker.client.net.requests import Parcel, RequestOptions, RetryBackoff
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.client.fake_broker import FakeBroker, Reset
from tests.client.kit import WAIT_S
from tests.client.test_user_code import NO_EXCEPTIONS
from tests.harness import until

TP = TopicPartition("t", 0)


class Keeper(FakeBroker):
    """A coordinator that holds commits until the test releases them."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.reset = False
        answers = {
            "FindCoordinator": self.coordinator,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "ListOffsets": lambda _: self.fail(),
            "Fetch": lambda _: self.fail(),
        }
        super().__init__(answers, {"Metadata": 9, "OffsetFetch": 7})

    def fail(self) -> None:
        raise ConnectionError

    def _commit(self, request: Any) -> Any:
        self.asked.release()
        assert self.go_on.wait(WAIT_S)
        if self.reset:
            raise Reset
        kind = m.OffsetCommitResponse.Topics
        return m.OffsetCommitResponse(topics=[kind(name="t", partitions=[kind.Partitions(partition_index=0)])])

    def _fetch(self, _: Any) -> Any:
        kind = m.OffsetFetchResponse.Topics
        found = kind.Partitions(partition_index=0, committed_offset=7)
        return m.OffsetFetchResponse(topics=[kind(name="t", partitions=[found])])


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    broker = Keeper()
    yield broker
    broker.go_on.set()
    broker.close()


def consumer_of(keeper: Keeper) -> Consumer:
    """A consumer that knows its coordinator, which holds all further commits."""
    consumer = Consumer(bootstrap_servers=f"127.0.0.1:{keeper.port}", group_id="g", enable_auto_commit=False)
    consumer.commit({TP: 0}, timeout_ms=30_000)
    assert keeper.asked.acquire(timeout=WAIT_S)
    keeper.go_on.clear()
    return consumer


def raising(kind: type[BaseException]) -> Callable[[Future[None]], None]:
    def call(_: Future[None]) -> None:
        raise kind("boom")

    return call


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("reset", [False, True], ids=["answered", "lost"])
@pytest.mark.parametrize("kind", [ValueError, *NO_EXCEPTIONS])
def test_a_commit_callback_may_raise_anything(
    keeper: Keeper, kind: type[BaseException], reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit callback may raise anything: other commits of its connection have their outcome, its other callbacks are
    called, and the log has one line a second."""
    called = threading.Event()
    with consumer_of(keeper) as consumer:
        keeper.reset = reset
        first = consumer.commit_async({TP: 1})
        assert keeper.asked.acquire(timeout=WAIT_S)
        commits = [first, *(consumer.commit_async({TP: n}) for n in range(2, 12))]
        for commit in commits[:-1]:
            commit.add_done_callback(raising(kind))
        first.add_done_callback(lambda _: called.set())
        keeper.go_on.set()
        assert not wait(commits, WAIT_S).not_done and called.is_set()
        codes = {error.code if isinstance(error := commit.exception(), KafkaError) else 0 for commit in commits}
        assert codes == {errors.NETWORK_EXCEPTION if reset else errors.NONE}
        lines = problems(caplog)
        assert len(lines) < 5 and all("a commit callback failed" in line for line in lines)
        keeper.reset = False
        consumer.commit({TP: 9}, timeout_ms=30_000)


@pytest.mark.parametrize("reset", [False, True], ids=["answered", "lost"])
@pytest.mark.parametrize("spoil", [Future.cancel, lambda commit: commit.add_done_callback(raising(SystemExit))])
def test_a_position_is_found_all_the_same(
    keeper: Keeper, spoil: Callable[[Future[None]], object], reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A position is found after a commit that is cancelled, or whose callback raises: other requests of the connection
    are not lost."""
    with consumer_of(keeper) as consumer:
        keeper.reset = reset
        commit = consumer.commit_async({TP: 1})
        assert keeper.asked.acquire(timeout=WAIT_S)
        spoil(commit)
        consumer.assign([TP])
        place = consumer._positions.get(TP)
        loop = consumer._network.loop
        (channel,) = (c for key, c in consumer._network._channels.items() if key[2] == "group")
        until("the committed offset is asked for", lambda: place.asking and channel.load == 2)
        keeper.go_on.set()
        assert consumer.position(TP, timeout_ms=30_000) == 7 and loop.running
        if commit.cancelled():
            assert not problems(caplog)


def test_a_cancelled_future_wakes_who_waits_for_it() -> None:
    """A cancelled future wakes `concurrent.futures.wait`, and a later answer is dropped."""
    promise: Promise[int] = Promise()
    assert promise.cancel()
    promise.settle(1, None)
    assert wait([promise], WAIT_S, FIRST_COMPLETED).done == {promise} and promise.cancelled()
    promise.settle(2, None)
    assert promise.cancelled(), "a second outcome is dropped, too"


def test_the_first_outcome_counts() -> None:
    """The first outcome counts and later ones are dropped; a callback that is added late raises in its caller, as for
    any future."""
    promise: Promise[int] = Promise()
    promise.settle(1, None)
    promise.settle(0, KafkaError(errors.NETWORK_EXCEPTION))
    assert promise.result(0) == 1
    with pytest.raises(SystemExit):
        promise.add_done_callback(lambda _: raising(SystemExit)(Future()))


def test_who_listens_to_a_consumer_may_raise_anything() -> None:
    """A consumer's callback may raise anything: the consumer is woken all the same."""
    bell = Bell()
    bell.also = lambda: raising(SystemExit)(Future())
    bell.ring()
    assert bell._event.is_set()


def test_requests_without_an_answer_hear_of_a_lost_connection(keeper: Keeper) -> None:
    """Requests without an answer fail with a lost connection: one with acks=0 too, while the system has not taken all
    of its bytes."""
    told: list[KafkaError | None] = []
    loop = Loop("test")
    channel = ClientChannel(
        loop, "127.0.0.1", keeper.port, client_id="c", timeout_s=WAIT_S, pauses=RetryBackoff(0.01, 0.01)
    )
    kind = m.ProduceRequest.TopicData
    part = kind.PartitionData(index=0, records=Parcel(bytes(16 << 20)))
    request = m.ProduceRequest(acks=0, timeout_ms=1000, topic_data=[kind(name="t", partition_data=[part])])
    try:
        commit = m.OffsetCommitRequest(group_id="g", topics=[])
        keeper.go_on.clear()
        loop.call_soon(channel.send, commit, lambda answer, error: told.append(error))
        assert keeper.asked.acquire(timeout=WAIT_S)
        for _ in range(2):
            loop.call_soon(
                channel.send, request, lambda answer, error: told.append(error), RequestOptions(answered=False)
            )
        loop.call_soon(channel.close, lost := KafkaError(errors.NETWORK_EXCEPTION))
        until("all callbacks ran", lambda: len(told) == 3)
        assert told == [lost] * 3
    finally:
        loop.close()


def test_what_is_asked_while_the_thread_ends_has_an_outcome(keeper: Keeper) -> None:
    """A commit_async during close() has an outcome: it arrives while the thread makes its last calls."""
    consumer = consumer_of(keeper)
    loop = consumer._network.loop
    holds = [(threading.Event(), threading.Event()) for _ in range(2)]

    def hold(entered: threading.Event, go_on: threading.Event) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    for each in holds:
        loop.call_soon(hold, *each)
        assert holds[0][0].wait(WAIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    until("the thread has the request to end", lambda: len(loop._soon) == 3, WAIT_S)
    holds[0][1].set()
    assert holds[1][0].wait(WAIT_S)
    late = consumer.commit_async({TP: 1})
    holds[1][1].set()
    assert isinstance(late.exception(WAIT_S), KafkaError)
    closing.join(WAIT_S)
    made = list[int]()
    loop.call_surely(made.append, 1)  # by a thread that saw the loop running a moment before
    assert made == [1]
