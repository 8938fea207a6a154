"""Requests between the controller and the brokers of a cluster, as values independent of the wire format.

    controller ──LeaderAndIsr, UpdateMetadata, StopReplica──> broker     an order, valid in one registration
    broker ──AlterPartition──> controller                                the ISR changes that a leader requests

`pybroker/server/api/handlers/control.py` converts requests to these values, and results to responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import TopicStates
from pybroker.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the controller of this epoch. `broker_epoch` is the receiving broker's registration; -1: any."""

    api: ClassVar[str]
    controller_id: int
    controller_epoch: int
    broker_epoch: int


class Role(NamedTuple):
    """The partition state by which a replica becomes leader or follower."""

    key: TopicPartition
    topic_id: bytes
    state: PartitionState
    is_new: bool = False
    """True if the partition was just created."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsr(Order):
    """Make replicas leaders or followers, in this order."""

    api = "LeaderAndIsr"
    roles: Sequence[Role]


class Stopped(NamedTuple):
    """A replica to stop, or to delete. `leader_epoch` -1: the current one."""

    key: TopicPartition
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class StopReplica(Order):
    """Stop these replicas."""

    api = "StopReplica"
    replicas: Sequence[Stopped]


class UncheckedEndpoint(NamedTuple):
    """A listener of a broker, not checked yet; `security_protocol` is Kafka's number."""

    listener: str
    host: str
    port: int
    security_protocol: int


class UncheckedBroker(NamedTuple):
    """A live broker, not checked yet."""

    id: int
    endpoints: Sequence[UncheckedEndpoint]
    rack: str | None


@dataclass(frozen=True, slots=True)
class MetadataOrder(Order):
    """Update the metadata of these brokers and partitions; with `full`, there are no other topics."""

    api = "UpdateMetadata"
    brokers: Sequence[UncheckedBroker]
    topics: Sequence[TopicStates]
    full: bool


class AskedIsr(NamedTuple):
    """The ISR that a leader requests; `epochs` are the members' broker epochs, None if the leader does not send them.
    `recovering`: after an unclean election; pybroker never sends it."""

    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    epochs: Mapping[int, int] | None
    recovering: bool = False


class AskedTopic(NamedTuple):
    """Partitions of one topic, given by its id, or by its name if the id is None."""

    id: bytes | None
    name: str
    partitions: Collection[AskedIsr]


class IsrState(NamedTuple):
    """The leader and ISR of a partition, with their epochs."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


class AlteredIsr(NamedTuple):
    """The result for one partition: an error code, or the current state."""

    partition: int
    error_code: int
    now: IsrState | None


class AlteredTopic(NamedTuple):
    """The results for partitions of one topic."""

    name: str
    partitions: Sequence[AlteredIsr]
