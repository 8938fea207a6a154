"""num.network.threads and num.replica.fetchers, changed while the broker runs."""

from __future__ import annotations

import logging
import threading

import pytest

from pybroker import errors
from pybroker.config import Source
from tests.server.live import Live, Wire, batch
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter, described

THREADS, FETCHERS = "num.network.threads", "num.replica.fetchers"


def connections(live: Live) -> list[int]:
    """The number of connections of each network thread."""
    assert live.broker is not None and live.broker.replicas is not None
    return [reactor["connections"] for reactor in live.broker.replicas.plane_stats()]


async def test_new_connections_go_to_threads_that_came(live: Live) -> None:
    """Added threads get the new connections; with fewer, the first ones do. No connection is closed or fails."""
    await live.restart(f"{THREADS}=1")
    wire = await live.connect()
    await wire.create("t")
    assert (await alter(wire, BROKER, "", (THREADS, SET, "3"))).error_code == 0
    wires = [wire, *[await live.connect() for _ in range(5)]]
    for number, each in enumerate(wires):
        assert (await each.produce("t", batch(b"v"))).base_offset == number
    assert connections(live) == [2, 2, 2]
    assert (await described(wires[3], BROKER, ""))[THREADS] == ("3", Source.DYNAMIC_DEFAULT_BROKER)
    assert (await alter(wire, BROKER, "", (THREADS, SET, "1"))).error_code == 0
    wires += [await live.connect() for _ in range(2)]
    for number, each in enumerate(wires):
        assert (await each.produce("t", batch(b"v"))).base_offset == 6 + number
    assert connections(live) == [4, 2, 2]


async def test_a_restart_begins_with_as_many(live: Live, wire: Wire) -> None:
    assert (await alter(wire, BROKER, "", (THREADS, SET, "2"), (FETCHERS, SET, "4"))).error_code == 0
    await live.restart()
    wire = await live.connect()
    assert len(connections(live)) == 2  # a lone broker has no fetcher threads
    assert (await described(wire, BROKER, ""))[FETCHERS] == ("4", Source.DYNAMIC_DEFAULT_BROKER)


@pytest.mark.parametrize("name", [THREADS, FETCHERS])
@pytest.mark.parametrize("count", ["0", "1025", "some"])
async def test_numbers_that_are_refused(live: Live, wire: Wire, name: str, count: str) -> None:
    before = len(connections(live))
    refused = await alter(wire, BROKER, "", (name, SET, count))
    assert refused.error_code == errors.INVALID_CONFIG and "from 1 to 1024" in refused.error_message
    assert len(connections(live)) == before


async def test_threads_that_cannot_start_are_told_and_those_there_are_serve(
    live: Live, wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, the existing threads serve, and the next change of a broker setting tries again."""
    before = len(connections(live))
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("pybroker-network"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(threading.Thread, "start", refused)
        assert (await alter(wire, BROKER, "", (THREADS, SET, str(before + 1)))).error_code == 0
    assert "network threads not started" in caplog.text and "can't start new thread" in caplog.text
    assert len(connections(live)) == before
    await (await live.connect()).create("t")
    assert (await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000"))).error_code == 0
    assert len(connections(live)) == before + 1
    assert (await alter(wire, BROKER, "", (THREADS, DELETE, None))).error_code == 0
