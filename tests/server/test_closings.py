"""Connections that had to be closed: one line a client and minute, however often it comes back."""

from __future__ import annotations

import pytest

from pybroker.cluster.caller import Caller
from pybroker.server.closings import CLIENTS_MAX, SILENT_SECONDS, Closings
from tests.server.live import Live


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "pybroker.server.closings"]
    caplog.clear()
    return lines


def close(closings: Closings, host: str, now: float, reason: str = "bad") -> None:
    closings.tell("connection closed", Caller(host, 7, "PLAINTEXT"), reason, now)


def test_the_first_is_told_at_once_and_the_others_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """Each client has its own minute; one that goes on is told of once in each."""
    closings = Closings()
    close(closings, "a", 0)
    close(closings, "b", 1)
    for n in range(3):
        close(closings, "a", 2 + n, f"bad {n}")
    assert said(caplog) == [f"connection closed client={host}:7 reason=bad" for host in "ab"]
    closings.tend(SILENT_SECONDS - 0.1)
    assert said(caplog) == []
    closings.tend(SILENT_SECONDS + 1)
    assert said(caplog) == ['connections closed client=a count=3 last="bad 2"']
    close(closings, "a", SILENT_SECONDS + 2)
    close(closings, "b", SILENT_SECONDS + 2)
    assert said(caplog) == ["connection closed client=b:7 reason=bad"]
    closings.close()
    assert said(caplog) == ["connections closed client=a count=1 last=bad"]


def test_a_client_that_was_quiet_for_a_minute_is_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    closings = Closings()
    close(closings, "a", 0)
    close(closings, "a", SILENT_SECONDS)
    assert said(caplog) == ["connection closed client=a:7 reason=bad"] * 2


def test_clients_beyond_the_limit_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    closings = Closings()
    for n in range(CLIENTS_MAX + 2):
        close(closings, f"h{n}", 0)
    assert len(said(caplog)) == CLIENTS_MAX + 1
    closings.close()
    assert said(caplog) == ["connections closed client=others count=1 last=bad"]


async def test_a_client_that_comes_back_again_and_again(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """On both planes; the count is told at the stop, if not before."""
    for _ in range(20):
        wire = await live.connect()
        wire.send_frame(b"\x7f\x7f\0\0" + bytes(8))
        assert await wire.closed()
    await live.stop()
    first, last = said(caplog)
    assert first.startswith("connection closed client=127.0.0.1:") and "no API has the key 32639" in first
    assert "client=127.0.0.1 count=19" in last
