"""Faults as a test asks for them: `broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)`.

Each call returns a Fault, which counts the requests it caught, can wait for them and can be removed; the end of `with`
removes it. A fault is in force when the call returns, in both modes, and does not survive a restart of the broker.
"""

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Final

from pybroker.testing.lifecycle import ASK_S_MAX, BrokerFailed, Command
from pybroker.testing.tracebacks import hidden

Ask = Callable[[Command], object]
POLL_S: Final = 0.005


class Fault:
    """One fault that was asked for."""

    def __init__(self, ask: Ask, name: str, rule: int) -> None:
        self._ask = ask
        self._name = name
        self._rule = rule

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    @hidden
    def hits(self) -> int:
        """The number of requests caught. ValueError if the broker was restarted since, BrokerFailed if it is down."""
        hits = self._ask({"do": "hits", "rule": self._rule})
        assert isinstance(hits, int)
        return hits

    @hidden
    def wait(self, hits: int = 1, timeout_s: float = ASK_S_MAX) -> None:
        """Return when the fault has caught this many requests. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (seen := self.hits) < hits:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name} caught {seen} of {hits} requests in {timeout_s:g} s")
            time.sleep(POLL_S)

    @hidden
    def remove(self) -> None:
        """Remove the fault: it catches nothing more, and held requests proceed. Does nothing if the broker is down."""
        with contextlib.suppress(BrokerFailed):
            self._ask({"do": "remove", "rule": self._rule})


class FullDisk:
    """A full disk, until remove() or the end of `with`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @hidden
    def remove(self) -> None:
        """Make room again; nothing if the broker is down."""
        with contextlib.suppress(BrokerFailed):
            self._ask({"do": "free_disk"})


class Faults:
    """The faults of one broker.

    `api` is an API's name as Kafka has it ("Produce"), None for any. `times` is the number of requests to catch, None
    for all; `after`, the number to let through first. With `client_id`, only that client's requests are caught.
    Requests of the broker handle itself are never caught, nor is the ApiVersions of a client before its login. Raises
    ValueError for an unknown name.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._numbers = itertools.count(1)  # never reused, so a fault of an earlier life matches no other

    @hidden
    def fail(self, api: str | None, error: str | int, *, times: int | None = 1, after: int = 0,
             client_id: str | None = None) -> Fault:  # fmt: skip
        """Answer with an error, given by name ("NOT_LEADER_OR_FOLLOWER") or code, instead of executing the request."""
        return self._add("fail", api, times, after, client_id, code=error_code(error))

    @hidden
    def delay(self, api: str | None, seconds: float, *, times: int | None = 1, after: int = 0,
              client_id: str | None = None) -> Fault:  # fmt: skip
        """Execute at once and answer late."""
        return self._add("delay", api, times, after, client_id, seconds=seconds)

    @hidden
    def drop(self, api: str | None, *, times: int | None = 1, after: int = 0, client_id: str | None = None) -> Fault:
        """Execute and never answer; the connection stays, and later requests on it are answered."""
        return self._add("drop", api, times, after, client_id)

    @hidden
    def disconnect(self, api: str | None, *, times: int | None = 1, after: int = 0, client_id: str | None = None,
                   executed: bool = True) -> Fault:  # fmt: skip
        """Close the connection instead of answering, after executing the request or (executed=False) instead of it."""
        return self._add("disconnect", api, times, after, client_id, executed=executed)

    @hidden
    def stall(self, api: str | None = "Fetch", *, times: int | None = None, after: int = 0,
              client_id: str | None = None) -> Fault:  # fmt: skip
        """Hold requests, and those behind them on their connections, until the fault is removed."""
        return self._add("stall", api, times, after, client_id)

    @hidden
    def close_connections(self) -> None:
        """Close the connections of all clients now; clients may reconnect at once."""
        self._ask({"do": "disconnect"})

    @hidden
    def rebalance(self, group: str) -> None:
        """Make the members of a consumer group rejoin. KafkaError if the broker knows no such group."""
        self._ask({"do": "rebalance", "group": group})

    @hidden
    def full_disk(self) -> FullDisk:
        """Make log growth fail: appends get KAFKA_STORAGE_ERROR, stored records can still be read."""
        self._ask({"do": "fill_disk"})
        return FullDisk(self._ask)

    @hidden
    def clear(self) -> None:
        """Remove every fault."""
        self._ask({"do": "clear"})

    def _add(self, action: str, api: str | None, times: int | None, after: int, client_id: str | None,
             **more: object) -> Fault:  # fmt: skip
        rule = next(self._numbers)
        command = {"do": "add", "rule": rule, "action": action, "api": api_name(api), "times": times, "after": after}
        self._ask({**command, "client_id": client_id, **more})
        return Fault(self._ask, f"{action} of {api or 'any request'}", rule)


def api_name(api: str | None) -> str | None:
    """Return the name, if the broker serves such an API. Raises ValueError."""
    from pybroker.protocol.apis import SERVED

    names = [served.name for served in SERVED.values()]
    if api is not None and api not in names:
        raise ValueError(f"{api!r} is no API of this broker: {', '.join(names)}")
    return api


def error_code(error: str | int) -> int:
    """Return the code of an error's name. Raises ValueError."""
    from pybroker.errors import ERRORS

    for known in ERRORS:
        if error in (known.name, known.code):
            return known.code
    raise ValueError(f"{error!r} is neither the name nor the code of an error of Kafka's")
