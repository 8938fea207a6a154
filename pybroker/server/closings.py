"""What the log says of connections that had to be closed, or requests denied: a client that comes back again and again
fills no disk.

    first of a client          one line at once
    others within the minute   counted, one line with the number and the last reason when the minute is over
"""

import logging
from dataclasses import dataclass

from pybroker.cluster.caller import Caller
from pybroker.logs import event

log = logging.getLogger(__name__)

SILENT_SECONDS = 60.0
CLIENTS_MAX = 1000
"""So many are told apart; those beyond share a line."""
OTHERS = "others"


@dataclass(slots=True)
class _Minute:
    until: float
    count: int = 0
    reason: str = ""


class Closings:
    """Tells of closed connections; `now` is in seconds of the loop's clock."""

    def __init__(self, summary: str = "connections closed") -> None:
        """`summary` is what the line with a number is called."""
        self._summary = summary
        self._minutes: dict[str, _Minute] = {}

    def tell(self, name: str, caller: Caller, reason: str, now: float) -> None:
        """A connection was closed or refused, as `name` says. A caller without a port is shown as a host."""
        self.tend(now)
        key = caller.host if caller.host in self._minutes or len(self._minutes) < CLIENTS_MAX else OTHERS
        minute = self._minutes.get(key)
        if minute is None:
            self._minutes[key] = _Minute(now + SILENT_SECONDS)
            event(log, logging.WARNING, name, client=caller.address if caller.port else caller.host, reason=reason)
        else:
            minute.count += 1
            minute.reason = reason

    def tend(self, now: float) -> None:
        """Tell what was counted in the minutes that are over; they are kept in the order of their ends."""
        for key, minute in list(self._minutes.items()):
            if now < minute.until:
                return
            self._end(key, minute)
            if minute.count:  # it goes on: the next line is due a minute from now
                self._minutes[key] = _Minute(now + SILENT_SECONDS)

    def __len__(self) -> int:
        """Clients that were told of, or counted, within the last minute."""
        return len(self._minutes)

    def close(self) -> None:
        """Tell the rest."""
        for key, minute in list(self._minutes.items()):
            self._end(key, minute)

    def _end(self, key: str, minute: _Minute) -> None:
        del self._minutes[key]
        if minute.count:
            event(log, logging.WARNING, self._summary, client=key, count=minute.count, last=minute.reason)
