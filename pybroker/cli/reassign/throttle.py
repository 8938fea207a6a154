"""The throttle of a run (KIP-73), which is removed with it, and never one that was set by hand.

A note in the configs of all brokers says what was set, before it is set, so that any machine can remove it later:

    note -> lists of replicas in topics -> rates of brokers            and backwards to remove it
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import click

from pybroker import errors
from pybroker.cli.main import Failure
from pybroker.cli.reassign.showing import number
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ConfigSource, ResourceType
from pybroker.decisions.config_changes import VALUE_BYTES_MAX
from pybroker.decisions.planning.balance_note import ROLES
from pybroker.decisions.planning.throttle_note import THROTTLE_NOTE as NOTE
from pybroker.decisions.planning.throttle_note import ThrottleNote
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.model import TopicPartition, bytes_text

ALL_BROKERS: Final = ConfigResource(ResourceType.BROKER, "")
EVERY: Final = "*"
NAMED_MAX: Final = 3
"""Sentences about what stays, at most."""
T = TypeVar("T")
Replicas = Mapping[str, Sequence[tuple[int, int]]]
"""By topic, each replica as (partition, broker)."""
Lists = Mapping[str, Mapping[str, Sequence[str]]]
"""By role and topic, entries of a list of throttled replicas: PARTITION:BROKER."""
NO_LISTS: Final[Lists] = {role: {} for role in ROLES}


def noted(admin: Admin) -> ThrottleNote | None:
    """Return the throttle that a run of this command has set and not removed yet; None also for a note that is none,
    which a sentence on standard error names."""
    text = next((e.value for e in admin.configs(ALL_BROKERS, [NOTE]) if e.name == NOTE), None)
    note = ThrottleNote.parse(text) if text else None
    if text and note is None:
        click.echo(f"pybroker: {NOTE} of all brokers is no note of a throttle: delete it", err=True)
    return note


def replicas_of(
    moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
) -> tuple[dict[str, list[tuple[int, int]]], dict[str, list[tuple[int, int]]]]:
    """Return the replicas to throttle as leaders, which are all present ones, and as followers, which are those to be
    added; `moves` has the replicas of each partition before and after."""
    leaders: dict[str, list[tuple[int, int]]] = {}
    followers: dict[str, list[tuple[int, int]]] = {}
    for (topic, index), (before, after) in sorted(moves.items()):
        leaders.setdefault(topic, []).extend((index, broker) for broker in before)
        followers.setdefault(topic, []).extend((index, broker) for broker in after if broker not in before)
    return leaders, followers


class Throttled(NamedTuple):
    """A sentence for each limit set by hand, which stays; and by role and topic the entries of the lists of throttled
    replicas that are this run's alone."""

    kept: list[str]
    own: Lists


def set_throttle(
    admin: Admin, rate: int, live: Iterable[int], moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]]
) -> Throttled:
    """Limit the copying of these moves, where it is not limited yet. Failure if a topic has a list of throttled
    replicas that was set by hand."""
    leaders, followers = replicas_of(moves)
    replicas: Mapping[str, Replicas] = {"leader": leaders, "follower": followers}
    there = noted(admin)
    old = there or ThrottleNote(rate, dict.fromkeys(ROLES, ()), dict.fromkeys(ROLES, ()))
    involved = {broker for of_role in replicas.values() for pairs in of_role.values() for _, broker in pairs}
    involved |= _brokers_of(old)  # they get the new rate, too
    lists = _lists(admin, replicas, old)
    brokers, kept = _brokers(admin, sorted(involved & set(live)), old)
    note = ThrottleNote(
        rate,
        {role: tuple(sorted({*old.brokers[role], *brokers[role]})) for role in ROLES},
        {role: tuple(sorted({*old.topics[role], *lists[role]})) for role in ROLES},
        tuple(sorted({old.rate, *old.earlier} - {rate})),
    )
    _check_length(note.text(), f"the note of {number(len(leaders), 'topic')}")
    if note != there:
        admin.alter_configs(ALL_BROKERS, [Alteration(NOTE, ConfigOperation.SET, note.text())])
    for role in ROLES:
        for topic, entries in lists[role].items():
            change = Alteration(_list_name(role), ConfigOperation.APPEND, ",".join(entries))
            admin.alter_configs(ConfigResource(ResourceType.TOPIC, topic), [change])
    for role in ROLES:
        for broker, now in brokers[role].items():
            if now != str(rate):
                change = Alteration(_rate_name(role), ConfigOperation.SET, str(rate))
                admin.alter_configs(ConfigResource(ResourceType.BROKER, str(broker)), [change])
    own = {role: {t: its for t, its in lists[role].items() if t not in old.topics[role]} for role in ROLES}
    return Throttled(kept, own)


def remove_throttle(admin: Admin, own: Lists = NO_LISTS) -> int | None:
    """Remove what the note says was set, unless it was changed by hand since, or any partition is being moved; return
    the rate, None without a note. Of a list in which a run has entries of its `own`, these are removed.

    The note keeps brokers that are not live, and what cannot be removed: a sentence on standard error says so, and None
    is returned."""
    note = noted(admin)
    if note is None:
        return None
    if admin.list_partition_reassignments():
        why = "stays while other partitions are being moved: `pybroker reassign status` removes it after them"
        click.echo(f"pybroker: the throttle of {bytes_text(note.rate)}/s {why}", err=True)
        return None
    live = {node.id for node in admin.describe_cluster().nodes}
    away = _brokers_of(note) - live
    stays = ["brokers that are not live: " + ", ".join(map(str, sorted(away)))] if away else []
    brokers: dict[str, list[int]] = {role: [b for b in note.brokers[role] if b in away] for role in ROLES}
    topics: dict[str, list[str]] = {role: [] for role in ROLES}
    for role in ROLES:
        for broker in sorted(live.intersection(note.brokers[role])):
            if why := _refusal(functools.partial(_remove_rate, admin, broker, role, note)):
                brokers[role].append(broker)
                stays.append(f"broker {broker}: {why}")
        for topic in note.topics[role]:
            if why := _refusal(functools.partial(_remove_list, admin, topic, role, own[role].get(topic))):
                topics[role].append(topic)
                stays.append(f"topic {topic}: {why}")
    if not stays:
        admin.alter_configs(ALL_BROKERS, [Alteration(NOTE, ConfigOperation.DELETE)])
        return note.rate
    rest = ThrottleNote(note.rate, _frozen(brokers), _frozen(topics), note.earlier)
    admin.alter_configs(ALL_BROKERS, [Alteration(NOTE, ConfigOperation.SET, rest.text())])
    for what in stays[:NAMED_MAX]:
        later = f"`pybroker reassign status` tries again; if it never can, delete {NOTE} of all brokers"
        click.echo(f"pybroker: the throttle of {bytes_text(note.rate)}/s stays on {printable(what)}; {later}", err=True)
    return None


def _frozen(by_role: Mapping[str, Sequence[T]]) -> dict[str, tuple[T, ...]]:
    return {role: tuple(values) for role, values in by_role.items()}


def _refusal(remove: Callable[[], None]) -> str:
    """Remove a config; return why that is refused, "" if it is not. Raises KafkaError where another try may succeed."""
    try:
        remove()
    except KafkaError as problem:
        if problem.code == errors.UNKNOWN_TOPIC_OR_PARTITION:  # a topic that was deleted
            return ""
        if problem.retriable:
            raise
        return problem.message or problem.name
    return ""


def _remove_rate(admin: Admin, broker: int, role: str, note: ThrottleNote) -> None:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    if note.has(_own_value(admin, resource, _rate_name(role))):
        admin.alter_configs(resource, [Alteration(_rate_name(role), ConfigOperation.DELETE)])


def _remove_list(admin: Admin, topic: str, role: str, own: Sequence[str] | None) -> None:
    """Take these entries out of the list of a topic, and with the last one, or None, remove the list."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    now = _own_value(admin, resource, _list_name(role))
    if now in (None, "", EVERY):
        return
    if own is None or set(_entries(now)) <= set(own):
        admin.alter_configs(resource, [Alteration(_list_name(role), ConfigOperation.DELETE)])
    else:
        admin.alter_configs(resource, [Alteration(_list_name(role), ConfigOperation.SUBTRACT, ",".join(own))])


def _entries(text: str | None) -> list[str]:
    return [entry.strip() for entry in (text or "").split(",") if entry.strip()]


def _brokers_of(note: ThrottleNote) -> set[int]:
    return {broker for of_role in note.brokers.values() for broker in of_role}


def _lists(admin: Admin, replicas: Mapping[str, Replicas], old: ThrottleNote) -> dict[str, dict[str, list[str]]]:
    """Return the entries that the lists of throttled replicas lack, by role and topic. Failure if a list was set by
    hand, or would be too long."""
    lists: dict[str, dict[str, list[str]]] = {role: {} for role in ROLES}
    topics = sorted({topic for of_role in replicas.values() for topic in of_role})
    for topic, entries in admin.topic_configs(topics).items():
        there = {entry.name: entry.value for entry in entries if entry.source == ConfigSource.TOPIC}
        for role in ROLES:
            wanted = [f"{index}:{broker}" for index, broker in replicas[role].get(topic, ())]
            now = there.get(_list_name(role)) or ""
            if now == EVERY or not wanted:
                continue
            if now and topic not in old.topics[role]:
                raise Failure(
                    f"topic {topic} has {_list_name(role)}={now}, set by hand: delete it, or leave out --throttle"
                )
            if missing := [entry for entry in dict.fromkeys(wanted) if entry not in set(_entries(now))]:
                count = len({index for index, _ in replicas[role][topic]})
                _check_length(",".join([now, *missing]), f"the list of {number(count, 'partition')} of {topic}")
                lists[role][topic] = missing
    return lists


def _check_length(text: str, what: str) -> None:
    """Raise Failure if a config cannot have this value."""
    if len(text.encode()) > VALUE_BYTES_MAX:
        fewer = "move fewer partitions in one run, by files of `pybroker reassign plan --json`"
        raise Failure(f"{what} to throttle takes more than {VALUE_BYTES_MAX} bytes: {fewer}, or leave out --throttle")


def _brokers(
    admin: Admin, involved: Sequence[int], old: ThrottleNote
) -> tuple[dict[str, dict[int, str | None]], list[str]]:
    """Return the brokers that may get the rate, by role, each with its present one; and a sentence for each that has
    one set by hand."""
    brokers: dict[str, dict[int, str | None]] = {role: {} for role in ROLES}
    kept = []
    for broker in involved:
        for role in ROLES:
            now = _own_value(admin, ConfigResource(ResourceType.BROKER, str(broker)), _rate_name(role))
            if now is None or (broker in old.brokers[role] and old.has(now)):
                brokers[role][broker] = now
            else:
                kept.append(f"broker {broker} keeps {_rate_name(role)}={now}, which was set by hand")
    return brokers, kept


def _own_value(admin: Admin, resource: ConfigResource, name: str) -> str | None:
    """Return the value that a config was given on this very topic or broker; None if it has none."""
    own = ConfigSource.TOPIC if resource.type is ResourceType.TOPIC else ConfigSource.DYNAMIC_BROKER
    return next((e.value for e in admin.configs(resource, [name]) if e.name == name and e.source == own), None)


def _list_name(role: str) -> str:
    return f"{role}.replication.throttled.replicas"


def _rate_name(role: str) -> str:
    return f"{role}.replication.throttled.rate"
