"""A thread pool whose size changes finishes its work and loses nothing."""

from __future__ import annotations

import threading

import pytest

from pybroker.replication.workers import Workers


def test_as_many_work_at_once_as_there_are_threads() -> None:
    """The number of items that run at once is that of the threads, before and after a resize."""
    workers = Workers(2, "test")
    for _ in range(2):
        barrier = threading.Barrier(3)

        def meet(barrier: threading.Barrier = barrier) -> int:
            barrier.wait(10)
            return threading.get_ident()

        meeting = [workers.submit(meet) for _ in range(2)]
        others = [workers.submit(threading.get_ident) for _ in range(20)]
        barrier.wait(10)
        met = {work.result(10) for work in meeting}
        assert len(met) == 2 and {work.result(10) for work in others} <= met
        workers.resize(4)
        workers.resize(2)
    workers.shutdown()


def test_what_was_submitted_before_a_change_is_done() -> None:
    """Work submitted before a resize is done by the old threads, while the new ones do later work."""
    workers, gate = Workers(1, "test"), threading.Event()
    before = [workers.submit(gate.wait, 10), workers.submit(lambda: "second")]
    workers.resize(2)
    assert workers.threads == 2
    assert workers.submit(lambda: "after").result(10) == "after"
    assert not any(work.done() for work in before)
    gate.set()
    assert [work.result(10) for work in before] == [True, "second"]
    workers.shutdown()


def test_the_same_number_changes_nothing() -> None:
    """A resize to the same number keeps the threads."""
    workers = Workers(1, "test")
    thread = workers.submit(threading.get_ident).result(10)
    workers.resize(1)
    assert workers.submit(threading.get_ident).result(10) == thread
    workers.shutdown()


def test_an_end_waits_for_all_and_takes_nothing_more() -> None:
    """A shutdown waits for all work, including that of threads from before a resize, and accepts nothing more."""
    workers, gate, done = Workers(1, "test"), threading.Event(), list[int]()

    def work() -> None:
        gate.wait(10)
        done.append(1)

    workers.submit(work)
    workers.resize(2)
    workers.submit(work)
    gate.set()
    workers.shutdown()
    assert done == [1, 1]
    with pytest.raises(RuntimeError):
        workers.submit(work)
