"""The note of a throttle that `pybroker reassign` has set: a config of all brokers, so any machine can remove it."""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker.decisions.planning.balance_note import ROLES, checked_id, checked_rate, checked_topic
from pybroker.errors import KafkaError

THROTTLE_NOTE: Final = "reassign.throttle.note"
"""A config of all brokers; one of Kafka keeps it too, as it keeps names that it does not know."""


class ThrottleNote(NamedTuple):
    """A throttle as it was set: the rate in bytes a second, and by role the brokers and topics it was set for.

    earlier: rates of runs before, which a broker still has if Ctrl-C ended the run that was to set the last one."""

    rate: int
    brokers: Mapping[str, tuple[int, ...]]
    topics: Mapping[str, tuple[str, ...]]
    earlier: tuple[int, ...] = ()

    def has(self, value: str | None) -> bool:
        """True if a broker's config with this value may be this throttle's."""
        return value in [str(rate) for rate in (self.rate, *self.earlier)]

    def text(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "ThrottleNote | None":
        """Parse a note; None if it is not one, and so nothing is known of a throttle."""
        try:
            found = json.loads(text)
            brokers = {role: tuple(map(checked_id, found["brokers"].get(role, ()))) for role in ROLES}
            topics = {role: tuple(map(checked_topic, found["topics"].get(role, ()))) for role in ROLES}
            earlier = tuple(map(checked_rate, found.get("earlier", ())))
            return cls(checked_rate(found["rate"]), brokers, topics, earlier)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError, KafkaError):
            return None
