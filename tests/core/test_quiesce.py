"""Pins of any number do not wait for each other, and a retired object waits for each pin that was there before."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.core import probes
from tests.core.stage import FETCH, Client, Stage, batch


@pytest.fixture(scope="module")
def probe() -> Any:
    return probes.load()


@pytest.mark.parametrize("beyond", [0, 1])
def test_more_pins_than_a_block_has(probe: Any, beyond: int) -> None:
    """A thread can take more pins than a block has, and a retired object waits for the last of them in any block."""
    quiesce = probe.Quiesce()
    slots = [quiesce.pin() for _ in range(probe.PINS + beyond)]
    assert sorted(slots) == list(range(min(slots), min(slots) + len(slots))) and len(slots) == len({*slots})
    for slot in [*slots]:
        quiesce.retire()
        assert quiesce.collect() > 0
        quiesce.unpin(slot)
    assert quiesce.collect() == 0


def test_the_last_block(probe: Any) -> None:
    """At the limit, one more pin waits for a slot and takes the next that is released."""
    quiesce = probe.Quiesce()
    slots = [quiesce.pin() for _ in range(probe.PINS * probe.PIN_BLOCKS)]
    assert len({*slots}) == len(slots)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(quiesce.pin()))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive() and not got
    quiesce.unpin(slots[1234])
    waiter.join(10)
    assert got == [slots[1234]]


def test_many_threads_at_once(probe: Any) -> None:
    """While several threads add blocks, no slot is given twice or lost."""
    quiesce = probe.Quiesce()
    held: set[int] = set()
    lock = threading.Lock()
    failed: list[str] = []

    def work() -> None:
        for _ in range(20):
            slots = [quiesce.pin() for _ in range(40)]
            with lock:
                if held & {*slots}:
                    failed.append("a slot was given twice")
                held.update(slots)
            quiesce.retire()
            with lock:
                held.difference_update(slots)
            for slot in slots:
                quiesce.unpin(slot)
            quiesce.collect()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and quiesce.collect() == 0


@pytest.mark.parametrize("reactors", [64, 200])
def test_reactors_that_all_hold_a_pin(tmp_path: Path, reactors: int) -> None:
    """Reactors that each hold a pin for their turn and take another to read a log all answer."""
    stage = Stage(tmp_path, reactors=reactors, partitions=1)
    stage.log.append(batch(b"a" * 100), now_ms=1)
    clients = [Client(stage) for _ in range(reactors)]
    stage.plane.start()
    for client in clients:
        client.sock.settimeout(60)
    for _ in range(20):
        for client in clients:
            client.fetch(0)
        for client in clients:
            part = client.receive(FETCH, 12)[1].responses[0].partitions[0]
            assert part.error_code == 0 and part.records
    stage.close()
