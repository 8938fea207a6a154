"""The content of an UpdateMetadata request, shared by all brokers that it is sent to.

    decision ──> one MetadataUpdate ──queued for each broker──> encoded once: only the broker epoch before it differs

With 300 brokers and 50,000 partitions a new controller sends a request of 5 MB to each: encoded for each broker, these
would take minutes of cpu, and the last broker would wait as long for its metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple, TypedDict
from weakref import WeakValueDictionary

from pybroker.decisions.image import LiveBroker, PartitionState
from pybroker.decisions.metadata_cache import FULL
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m

VERSION = 8
PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Told(NamedTuple):
    """A partition's state to send, and its topic id; `offline`: replicas on live brokers whose logs are unusable."""

    topic_id: bytes
    state: PartitionState
    is_new: bool = False
    offline: tuple[int, ...] = ()


class MetadataUpdate:
    """Partitions and live brokers to send. `full`: these are all partitions, and topics not in it were deleted."""

    def __init__(
        self, told: Mapping[TopicPartition, Told], live: Mapping[int, LiveBroker], *, full: bool = False
    ) -> None:
        self.told, self.live, self.full = told, live, full

    def request(self, head: Head) -> m.UpdateMetadataRequest:
        """Return the request for one broker."""
        kind = FULL if self.full else 0
        return m.UpdateMetadataRequest(topic_states=self._topics, live_brokers=self._brokers, type=kind, **head)

    def tail(self) -> codec.Tail:
        """Return the encoded fields that are the same for all brokers. Raises EncodeError."""
        return self._tail

    @cached_property
    def _tail(self) -> codec.Tail:
        whole = m.UpdateMetadataRequest(topic_states=self._topics, live_brokers=self._brokers)
        return codec.encode_tail(whole, VERSION, "topic_states")

    @cached_property
    def _topics(self) -> list[m.UpdateMetadataRequest.TopicStates]:
        kind = m.UpdateMetadataRequest.TopicStates
        states, live = kind.PartitionStates, self.live
        return [
            kind(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    states(
                        partition_index=index,
                        replicas=list(told.state.replicas),
                        zk_version=told.state.partition_epoch,
                        offline_replicas=[b for b in told.state.replicas if b not in live or b in told.offline],
                        **decided(told.state),
                    )
                    for index, told in partitions
                ],
            )
            for name, topic_id, partitions in by_topic(self.told)
        ]

    @cached_property
    def _brokers(self) -> list[m.UpdateMetadataRequest.LiveBrokers]:
        kind = m.UpdateMetadataRequest.LiveBrokers
        return [
            kind(
                id=broker.id,
                rack=broker.rack,
                endpoints=[
                    kind.Endpoints(
                        host=at.host, port=at.port, listener=name, security_protocol=PROTOCOLS[broker.protocols[name]]
                    )
                    for name, at in broker.endpoints.items()
                ],
            )
            for broker in self.live.values()
        ]


class Merged:
    """The merged forms of updates that wait together at several brokers, as long as one of these sends them."""

    def __init__(self) -> None:
        self._merged: WeakValueDictionary[tuple[int, ...], _Merger] = WeakValueDictionary()

    def of(self, updates: Sequence[MetadataUpdate]) -> MetadataUpdate:
        """Return one update with the latest state of each partition."""
        if len(updates) == 1:
            return updates[0]
        key = tuple(map(id, updates))
        found = self._merged.get(key)
        if found is None:
            found = self._merged[key] = _Merger(updates)
        return found


class _Merger(MetadataUpdate):
    """The merged form of updates. It keeps these, so that none of their ids is used again meanwhile."""

    def __init__(self, updates: Sequence[MetadataUpdate]) -> None:
        told: dict[TopicPartition, Told] = {}
        for each in updates:
            told.update(each.told)
        super().__init__(told, updates[-1].live, full=any(each.full for each in updates))
        self._updates = tuple(updates)


class Head(TypedDict):
    """The first fields of each request of a controller."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


class Decided(TypedDict):
    """The fields of a partition in both LeaderAndIsr and UpdateMetadata."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]


def decided(state: PartitionState) -> Decided:
    return {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }


def by_topic(told: Mapping[TopicPartition, Told]) -> Iterable[tuple[str, bytes, list[tuple[int, Told]]]]:
    """Return (name, id, sorted partitions) of each topic."""
    topics: dict[tuple[str, bytes], list[tuple[int, Told]]] = {}
    for (name, index), each in told.items():
        topics.setdefault((name, each.topic_id), []).append((index, each))
    for found in topics.values():
        found.sort(key=itemgetter(0))
    return [(name, topic_id, topics[name, topic_id]) for name, topic_id in sorted(topics)]
