"""Logs closed connections and denied requests, with limits, so that a client that keeps reconnecting neither fills the
disk nor hides its other problems.

    first of a client, for a reason     one line at once
    the same within a minute            counted; one line with the count when the minute is over
    more than REASONS_MAX reasons       of one client: counted together, with the last reason

Refused passwords, proofs and tokens are counted separately, so that harmless closings cannot hide guessing: their
summary is named LOGINS_REFUSED, and if it covers several users it names the most frequent ones.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker.decisions.caller import Caller
from pybroker.logs import FIELD_CHARS_MAX, event

log = logging.getLogger(__name__)

SILENT_SECONDS = 60.0
CLIENTS_MAX = 1000
"""Clients that are counted separately; further ones share lines."""
REASONS_MAX = 10
"""Reasons of one client that have lines of their own, which limits its log lines in a minute, and memory."""
USERS_MAX = 10
"""Users named in one summary: each user with more than one guess in eleven is among them (Misra and Gries)."""
OTHERS = "others"
LOGINS_REFUSED = "logins refused"
REQUESTS_REFUSED = "requests refused"
REASON_CHARS_MAX, USER_CHARS_MAX = FIELD_CHARS_MAX, 100


class _What(NamedTuple):
    """The subject of one line, and the name of its summary; `reason` is None if it covers several."""

    summary: str
    client: str
    user: str | None
    reason: str | None


@dataclass(slots=True)
class _Minute:
    until: float
    count: int = 0
    last: str = ""
    users: Counter[str] = field(default_factory=Counter)

    def add_user(self, user: str) -> None:
        """Count a user; the counts of at most USERS_MAX are kept."""
        if user in self.users or len(self.users) < USERS_MAX:
            self.users[user] += 1
        else:
            self.users = Counter({name: count - 1 for name, count in self.users.items() if count > 1})


class Closings:
    """Logs closed connections; `now` is in seconds of the loop's clock."""

    def __init__(self, summary: str = "connections closed") -> None:
        """`summary` is the event name of lines with a count, except for refused credentials."""
        self._summary = summary
        self._minutes: dict[_What, _Minute] = {}
        self._reasons: dict[str, Counter[str]] = {}  # by summary, then by client

    def tell(
        self, name: str, caller: Caller, reason: str, now: float, user: str = "", *, credentials: bool = False,
        summary: str | None = None,
    ) -> None:  # fmt: skip
        """Log or count that a connection was closed or refused, under the event `name`. A caller without a port is
        shown as a host. `user` is the name that the client gave, if any; `credentials`: its password, proof or token
        was refused. `summary`: the event name of the line with the count, if not the usual one."""
        self.tend(now)
        reason, shown = _cut(reason, REASON_CHARS_MAX), _cut(user, USER_CHARS_MAX) or None
        summary = LOGINS_REFUSED if credentials else summary or self._summary
        what = self._line(_What(summary, caller.host, shown, reason))
        minute = self._minutes.get(what)
        if minute is None:
            self._begin(what, now)
            client = caller.address if caller.port else caller.host
            event(log, logging.WARNING, name, client=client, user=shown, reason=reason)
        else:
            minute.count += 1
            minute.last = reason
            if shown is not None and what.user is None:
                minute.add_user(shown)

    def tend(self, now: float) -> None:
        """Log the counts of minutes that are over; `_minutes` is ordered by their ends."""
        over = []
        for what, minute in self._minutes.items():
            if now < minute.until:
                break
            over.append((what, minute))
        for what, minute in over:
            self._end(what, minute)
            if minute.count:  # count for another minute
                self._begin(what, now)

    def __len__(self) -> int:
        """The number of lines that are being counted."""
        return len(self._minutes)

    def close(self) -> None:
        """Log the counts that remain."""
        for what, minute in list(self._minutes.items()):
            self._end(what, minute)

    def _line(self, what: _What) -> _What:
        """The line that a closing is counted in; shared lines if there are too many clients, or reasons of a client."""
        reasons = self._reasons.setdefault(what.summary, Counter())
        if what.client not in reasons and len(reasons) >= CLIENTS_MAX:
            what = what._replace(client=OTHERS)
        if what in self._minutes or reasons[what.client] < REASONS_MAX:
            return what
        return what._replace(user=None, reason=None)

    def _begin(self, what: _What, now: float) -> None:
        self._minutes[what] = _Minute(now + SILENT_SECONDS)
        self._reasons[what.summary][what.client] += 1

    def _end(self, what: _What, minute: _Minute) -> None:
        del self._minutes[what]
        reasons = self._reasons[what.summary]
        reasons[what.client] -= 1
        if not reasons[what.client]:
            del reasons[what.client]
        if minute.count:
            last = minute.last if what.reason is None else None
            users = ",".join(user for user, _ in minute.users.most_common()) or None
            event(
                log, logging.WARNING, what.summary, client=what.client, user=what.user, users=users, count=minute.count,
                reason=what.reason, last=last,
            )  # fmt: skip


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."
