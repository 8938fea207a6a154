"""A topic, and the rules of CreateTopics and CreatePartitions for names, counts and assignments. No I/O.

Each refusal is a KafkaError with Kafka's error code and a sentence with the values in it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pybroker import errors
from pybroker.decisions.image import INTERNAL_TOPICS, PartitionState
from pybroker.errors import KafkaError

NAME_LENGTH_MAX = 249
"""So that `<topic>-<partition>` with its suffixes is a valid file name."""
PARTITIONS_MAX = 100_000
"""Partitions of one topic: more are a typing error, and would use up the broker's memory."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")

Assignment = list[list[int]]
"""The replicas of each partition, in order of preference."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One incarnation of a topic, as the controller keeps it; `id` is 16 bytes, `config` its own settings as text,
    `directories` the directory.id of the log dir of each created partition."""

    name: str
    id: bytes
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[int, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless this is a valid topic name."""
    if not name:
        problem = "a topic's name cannot be empty"
    elif name in (".", ".."):
        problem = f"a topic's name cannot be {name!r}"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"a topic's name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}"
    elif not _NAME.fullmatch(name):
        problem = f"a topic's name has only letters, digits, '.', '_' and '-'; {name!r} has others"
    else:
        return
    raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, problem)


def collision(name: str, existing: Iterable[str]) -> str | None:
    """The topic whose metrics would have the same name, where `.` and `_` are the same; None if there is none."""
    if "." not in name and "_" not in name:
        return None
    key = name.replace(".", "_")
    alike = (other for other in existing if len(other) == len(key))
    return next((other for other in alike if other.replace(".", "_") == key), None)


def check_counts(partitions: int, replication_factor: int, brokers: int) -> None:
    """Raise INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR for a count that is out of range."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise KafkaError(
            errors.INVALID_PARTITIONS, f"a topic has from 1 to {PARTITIONS_MAX} partitions, not {partitions}"
        )
    if replication_factor < 1:
        raise KafkaError(errors.INVALID_REPLICATION_FACTOR, f"a replication factor of {replication_factor} is below 1")
    if replication_factor > brokers:
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} needs as many brokers, but the cluster has {brokers}",
        )


def check_assignment(given: Mapping[int, Sequence[int]], brokers: Iterable[int]) -> Assignment:
    """The replicas of a new topic, from a client's assignment. Raises INVALID_REPLICA_ASSIGNMENT, INVALID_PARTITIONS.
    """
    if sorted(given) != list(range(len(given))):
        raise _bad(f"partitions must be numbered from 0 without gaps, these are {sorted(given)[:10]}")
    if len(given) > PARTITIONS_MAX:
        raise KafkaError(errors.INVALID_PARTITIONS, f"a topic has from 1 to {PARTITIONS_MAX} partitions")
    assignment = [list(given[partition]) for partition in range(len(given))]
    return check_replicas(assignment, len(assignment[0]), brokers)


def check_replicas(assignment: Assignment, replication_factor: int, brokers: Iterable[int]) -> Assignment:
    """The assignment, if each partition has `replication_factor` distinct live replicas. Raises
    INVALID_REPLICA_ASSIGNMENT."""
    live = set(brokers)
    for replicas in assignment:
        if not replicas or len(replicas) != replication_factor:
            raise _bad(f"every partition needs {max(replication_factor, 1)} replicas, one has {replicas}")
        if len(set(replicas)) < len(replicas):
            raise _bad(f"a broker is named twice in {replicas}")
        if not live.issuperset(replicas):
            raise _bad(f"{replicas} names brokers that are not alive; the live ones are {sorted(live)}")
    return assignment


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, why)
