"""The note of the moves that the continuous balancer has under way, with the throttle that it has set for them.

It is a config of all brokers, written before anything that it names, so that the next controller, or `reassign status`,
knows the moves of the balancer, and can remove its throttle:

    note and rates -> lists of replicas in topics -> moves          and backwards to end
"""

import json
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pybroker.decisions.planning.snapshot import Reassigned
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

NOTE: Final = "auto.balance.note"
ENABLE: Final = "auto.balance.enable"
EXCLUDED: Final = "auto.balance.excluded.brokers"
ROLES: Final = ("leader", "follower")
EVERY: Final = "*"
Replicas = tuple[int, ...]


class BalanceNote(NamedTuple):
    """The moves, each with the replicas before and after; the rate in bytes a second, and the roles that it was set
    for."""

    rate: int
    roles: tuple[str, ...]
    moves: Mapping[TopicPartition, tuple[Replicas, Replicas]]

    @classmethod
    def of(cls, moves: Collection[Reassigned], rate: int, roles: Collection[str]) -> "BalanceNote":
        return cls(rate, tuple(roles), {move.partition: (move.before, move.after) for move in moves})

    def text(self) -> str:
        topics: dict[str, dict[str, list[Replicas]]] = {}
        for (topic, index), replicas in self.moves.items():
            topics.setdefault(topic, {})[str(index)] = list(replicas)
        return json.dumps({"rate": self.rate, "roles": self.roles, "moves": topics}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> "BalanceNote | None":
        """Parse a note; None if there is none. A text that is no note gives one without moves, which is removed."""
        if not text:
            return None
        try:
            found = json.loads(text)
            moves = {
                TopicPartition(checked_topic(topic), checked_id(int(index))): (_replicas(before), _replicas(after))
                for topic, its in found["moves"].items()
                for index, (before, after) in its.items()
            }
            roles = {ROLES.index(role): role for role in found["roles"]}
            return cls(checked_rate(found["rate"]), tuple(roles.values()), moves)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError, KafkaError):
            return cls(0, (), {})

    def lists(self) -> dict[str, dict[str, str]]:
        """The lists of throttled replicas, by topic and setting: all present replicas send, those to be added copy."""
        found: dict[str, dict[str, str]] = {}
        for (topic, index), (before, after) in sorted(self.moves.items()):
            adding = [broker for broker in after if broker not in before]
            for role, brokers in zip(ROLES, (before, adding), strict=True):
                lists = found.setdefault(topic, {})
                pairs = [f"{index}:{broker}" for broker in brokers] if adding else []
                if pairs:
                    lists[list_name(role)] = ",".join([*filter(None, [lists.get(list_name(role))]), *pairs])
        return {topic: lists for topic, lists in found.items() if lists}


def checked_topic(name: object) -> str:
    """The name, if it may be a topic's. Raises TypeError, KafkaError."""
    if not isinstance(name, str):
        raise TypeError(name)
    check_name(name)
    return name


def checked_id(number: object) -> int:
    """The number, if it may be that of a partition or a broker. Raises ValueError."""
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise ValueError(number)
    return number


def checked_rate(number: object) -> int:
    """The number, if it may be a rate in bytes a second. Raises ValueError."""
    if type(number) is not int or not 0 < number < 1 << 63:
        raise ValueError(number)
    return number


def _replicas(told: object) -> Replicas:
    if not isinstance(told, list):
        raise TypeError(told)
    return tuple(map(checked_id, told))


def list_name(role: str) -> str:
    return f"{role}.replication.throttled.replicas"


def rate_name(role: str) -> str:
    return f"{role}.replication.throttled.rate"


def is_by_hand(config: Mapping[str, str]) -> bool:
    """True if a topic has a list of throttled replicas, and not of all, while the balancer has set none."""
    return any(config.get(list_name(role)) not in (None, "", EVERY) for role in ROLES)
