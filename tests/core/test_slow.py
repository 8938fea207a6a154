"""A log that made a reactor wait for its disk is left to threads for a while, and the reactor serves other logs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.core.stage import FETCH, PRODUCE, REMEMBERED, STUCK_MS, Client, Stage, batch
from tests.core.test_stalls import Running, produced
from tests.harness import until

SLOW_MS = 600
"""Long enough to be slow; QUICK_MS is not."""
QUICK_MS = 100
STANDS_MS = 20
"""Time after which other appends no longer wait behind one (core/storage/log/slow_disk.pxd)."""


def served_here(stage: Stage, client: Client, api: int, partition: int = 0) -> bool:
    """True if the reactor executes this request; if it goes to Python, the connection executes no further one."""
    if api == PRODUCE:
        client.produce(batch(b"y"), partition=partition)
    else:
        client.fetch(0)
    stage.step()
    if "request" in [kind for kind, *_ in stage.plane.take()]:
        return False
    client.receive(api, 9 if api == PRODUCE else 12)
    return True


@pytest.mark.parametrize("point", ["append.before", "segment.reserve", "segment.write", "append.after"])
@pytest.mark.parametrize("slow", [True, False])
def test_after_a_slow_append_the_next_ones_are_left_to_threads(stage: Stage, point: str, slow: bool) -> None:
    """After a slow append, later appends to its partition on any connection are left to threads.

    Other partitions, and Fetches of this one, are still served by the reactor.
    """
    first, other, third = Client(stage), Client(stage), Client(stage)
    stage.broker.arm(point, "sleep", SLOW_MS if slow else QUICK_MS)
    first.produce(batch(b"x"))
    stage.step()
    assert produced(first) == 0
    assert served_here(stage, first, PRODUCE) is not slow
    assert served_here(stage, other, PRODUCE) is not slow
    assert served_here(stage, third, PRODUCE, partition=1)
    assert served_here(stage, third, FETCH)


@pytest.mark.parametrize("point", ["segment.read", "segment.send"])
def test_after_a_slow_read_the_next_ones_are_left_to_threads(stage: Stage, point: str) -> None:
    """After a Fetch that waited for the disk, Fetches of its partition are left to threads; appends are not."""
    for _ in range(REMEMBERED + 1):
        stage.log.append(batch(bytes(1000)), now_ms=1)
    first, other = Client(stage), Client(stage)
    assert served_here(stage, first, FETCH) and not stage.log.slow_reads
    stage.broker.arm(point, "sleep", SLOW_MS)
    assert served_here(stage, first, FETCH) and stage.log.slow_reads
    assert not served_here(stage, first, FETCH)
    assert served_here(stage, other, PRODUCE)
    assert not served_here(stage, other, FETCH)


def test_an_append_behind_one_that_stands_still_is_left_to_a_thread(tmp_path: Path) -> None:
    """A reactor whose append meets another reactor's hanging write leaves the append to a thread and does not wait."""
    stage = Running(tmp_path, reactors=2)
    stuck, free = Client(stage), Client(stage)  # reactors take connections in turn
    stage.broker.arm("segment.write", "sleep", STUCK_MS, times=1000)
    stage.plane.start()
    stuck.produce(batch(b"x"))
    until("one reactor hangs", lambda: stage.broker.sleeping > 0)
    time.sleep(5 * STANDS_MS / 1000)
    letters: list[str] = []

    def left() -> bool:
        letters.extend(kind for kind, *_ in stage.plane.take())
        return "request" in letters

    free.produce(batch(b"y"))
    until("the request is left to Python", left)
    assert stage.broker.sleeping == 1 and stuck.quiet()
    stage.close()
