"""Closed connections are logged once a minute per client, however often the client comes back."""

from __future__ import annotations

import pytest

from pybroker import errors
from pybroker.decisions.caller import Caller
from pybroker.protocol.bounds import OTHERS
from pybroker.server.network import closed_connections
from pybroker.server.network.closed_connections import CLIENTS_MAX, REASONS_MAX, SILENT_SECONDS, Closings
from tests.server.live import Live


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == closed_connections.__name__]
    caplog.clear()
    return lines


def close(closings: Closings, host: str, now: float, reason: str = "bad", user: str = "") -> None:
    closings.tell("connection closed", Caller(host, 7, "PLAINTEXT"), reason, now, user)


def test_the_first_is_told_at_once_and_the_others_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """Each client has its own minute; a client that goes on is logged once in each."""
    closings = Closings()
    close(closings, "a", 0)
    close(closings, "b", 1)
    for n in range(3):
        close(closings, "a", 2 + n)
    assert said(caplog) == [f"connection closed client={host}:7 reason=bad" for host in "ab"]
    closings.tend(SILENT_SECONDS - 0.1)
    assert said(caplog) == []
    closings.tend(SILENT_SECONDS + 1)
    assert said(caplog) == ['connections closed client=a count=3 reason=bad']
    close(closings, "a", SILENT_SECONDS + 2)
    close(closings, "b", SILENT_SECONDS + 2)
    assert said(caplog) == ["connection closed client=b:7 reason=bad"]
    closings.close()
    assert said(caplog) == ["connections closed client=a count=1 reason=bad"]


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
    assert said(caplog) == ["connections closed client=others count=1 reason=bad"]


def test_reasons_and_users_of_a_client_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons and users have a line each up to a limit; the rest share a line that shows the last."""
    closings = Closings()
    for _ in range(2):
        close(closings, "a", 0)
        close(closings, "a", 0, user="ann")
        close(closings, "a", 0, user='b"\n' + "o" * 200)
        for n in range(3, REASONS_MAX + 1):
            close(closings, "a", 0, f"bad {n}")
    bob = rf'user="b\"\n{"o" * 97}..."'
    more = [f"client=a:7 reason=\"bad {n}\"" for n in range(3, REASONS_MAX)]
    assert said(caplog) == [f"connection closed {words}" for words in [
        "client=a:7 reason=bad", "client=a:7 user=ann reason=bad", f"client=a:7 {bob} reason=bad", *more,
        f'client=a:7 reason="bad {REASONS_MAX}"',
    ]]  # fmt: skip
    close(closings, "a", 1, "another")
    close(closings, "b", 1, "another")
    assert said(caplog) == ["connection closed client=b:7 reason=another"]
    closings.close()
    summed = [words.replace("a:7", "a").replace("reason", "count=1 reason") for words in more]
    assert said(caplog) == [f"connections closed {words}" for words in [
        "client=a count=1 reason=bad", "client=a user=ann count=1 reason=bad", f"client=a {bob} count=1 reason=bad",
        *summed, "client=a count=2 last=another",
    ]]  # fmt: skip
    close(closings, "a", 2, "another")
    assert said(caplog) == ["connection closed client=a:7 reason=another"]


async def test_a_client_that_comes_back_again_and_again(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A client's repeated closings are counted, and the count is logged at the stop at the latest."""
    for _ in range(20):
        wire = await live.connect()
        wire.send_frame(b"\x7f\x7f\0\0" + bytes(8))
        assert await wire.closed()
    await live.stop()
    first, last = said(caplog)
    assert first.startswith("connection closed client=127.0.0.1:") and "no API has the key 32639" in first
    assert "client=127.0.0.1 count=19" in last


async def test_a_request_that_is_too_large_is_logged_too(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A refused request keeps its connection; it is logged at once, and repeats with a count at the stop."""
    wire = await live.connect()
    for _ in range(4):
        answer = await wire.call("ListGroups", 4, states_filter=["x"] * (OTHERS.most + 1))
        assert answer.error_code == errors.INVALID_REQUEST
    await live.stop()
    first, last = said(caplog)
    assert first.startswith("request refused client=127.0.0.1:") and "user=User:ANONYMOUS" in first
    reason = "ListGroups is too large: ListGroupsRequest v4.states_filter: more than 1000 elements in one message"
    assert first.endswith(f'reason="{reason}"')
    assert last == f'requests refused client=127.0.0.1 user=User:ANONYMOUS count=3 reason="{reason}"'
