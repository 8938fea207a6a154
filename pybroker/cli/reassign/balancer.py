"""The continuous balancer, beside an operator's commands: these come first, and say which brokers it must not fill."""

import time
from collections.abc import Collection, Iterable
from typing import Final

import click

from pybroker.cli.main import Failure
from pybroker.cli.reassign.showing import number
from pybroker.cli.waiting import WaitReport
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.decisions.planning.balance_note import EXCLUDED, NOTE, BalanceNote
from pybroker.model import TopicPartition

ALL_BROKERS: Final = ConfigResource(ResourceType.BROKER, "")
POLL_S: Final = 0.5


def _value(admin: Admin, name: str) -> str:
    """Return a config of all brokers; "" if it is not set, or a cluster does not know it."""
    return next((entry.value or "" for entry in admin.configs(ALL_BROKERS, [name]) if entry.name == name), "")


def moves(admin: Admin) -> set[TopicPartition]:
    """Return the partitions in the batch that the balancer has under way."""
    note = BalanceNote.parse(_value(admin, NOTE))
    return set() if note is None else set(note.moves)


def excluded(admin: Admin) -> set[int]:
    """Return the brokers to which the balancer moves nothing."""
    return set(_listed(admin).values())


def _listed(admin: Admin) -> dict[str, int]:
    """Return the ids of these brokers, each by its word in the list, which may have been written by hand."""
    words = map(str.strip, _value(admin, EXCLUDED).split(","))
    return {word: int(word) for word in words if word.isdecimal()}


def exclude(admin: Admin, brokers: Collection[int]) -> set[int]:
    """Have the balancer move nothing to these brokers; return those that were not excluded. A cluster of Kafka, which
    has no balancer, is left as it is."""
    out = set(brokers) - excluded(admin) if _has_balancer(admin) else set[int]()
    _alter(admin, ConfigOperation.APPEND, map(str, out))
    return out


def admit(admin: Admin, brokers: Collection[int]) -> set[int]:
    """Let the balancer move replicas to these brokers again; return those that were excluded."""
    back = {word: broker for word, broker in _listed(admin).items() if broker in brokers}
    _alter(admin, ConfigOperation.SUBTRACT, back)
    return set(back.values())


def _has_balancer(admin: Admin) -> bool:
    """True if the brokers have a default for the list: Kafka keeps names that it does not know, and shows no value."""
    broker = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().nodes[0].id))
    return any(entry.name == EXCLUDED and entry.value is not None for entry in admin.configs(broker, [EXCLUDED]))


def _alter(admin: Admin, operation: ConfigOperation, words: Iterable[str]) -> None:
    """Put brokers into the list, or take them out, and leave the others to commands that run at the same time."""
    if text := ",".join(sorted(words)):
        admin.alter_configs(ALL_BROKERS, [Alteration(EXCLUDED, operation, text)])


def take_over(admin: Admin, timeout_s: float) -> None:
    """Cancel the moves of the balancer, and wait until it has removed its throttle: it begins none while others move
    replicas. Failure if that takes too long."""
    its = moves(admin)
    if not its:
        return
    under_way = [tp for tp in admin.list_partition_reassignments() if tp in its]
    if under_way:
        click.echo(f"Cancelling the move of {number(len(under_way), 'partition')} by the balancer.", err=True)
        admin.alter_partition_reassignments(dict.fromkeys(under_way))
    deadline_s = time.monotonic() + timeout_s
    with WaitReport("for the balancer to end its batch and to remove its throttle"):
        while moves(admin):
            if time.monotonic() > deadline_s:
                raise Failure(
                    "the balancer has not ended its batch: try again, or set auto.balance.enable=false for all brokers"
                )
            time.sleep(POLL_S)
