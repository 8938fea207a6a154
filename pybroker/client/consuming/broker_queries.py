"""Blocking queries of a consumer: offsets by time, and the partitions of a topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future

from pybroker import errors
from pybroker.client.net import list_offsets
from pybroker.client.net.list_offsets import OffsetAnswer
from pybroker.client.net.network import STALE, NetworkClient
from pybroker.client.net.requests import RequestOptions
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

_POLL_S = 0.005
_GRACE_S = 1.0  # beyond the request's own timeout, whose error says why it failed


class BrokerQueries:
    """Calls that block until brokers answered, or until a time of `time.monotonic()`. For any thread but the loop's."""

    def __init__(self, network: NetworkClient, settings: Settings) -> None:
        self._network = network
        self._settings = settings
        self._isolation = int(settings.isolation_level == "read_committed")

    def partitions(self, topic: str, deadline_s: float) -> list[int]:
        """The partitions of a topic. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if it does not exist and is not created."""
        self._network.want([topic])
        while True:
            info = self._network.view.topics.get(topic)
            if info is not None and not info.error and info.partitions:
                return [p.partition for p in info.partitions]
            if info is not None:
                self._refuse_unknown(TopicPartition(topic, 0))
            if time.monotonic() >= deadline_s:
                raise self._network.timed_out(f"the partitions of topic {topic!r} could not be had")
            self._network.check_wanted()
            time.sleep(_POLL_S)

    def offsets(self, times: Mapping[TopicPartition, int], deadline_s: float) -> dict[TopicPartition, OffsetAnswer]:
        """The offset of each partition at a time, EARLIEST or LATEST, from its leader."""
        found: dict[TopicPartition, OffsetAnswer] = {}
        self._network.want({tp.topic for tp in times})
        while True:
            view = self._network.view
            asked = list_offsets.by_leader(view, {tp: at for tp, at in times.items() if tp not in found})
            for tp in asked.pop(-1, ()):
                self._refuse_unknown(tp)
            left_s = max(0.001, deadline_s - time.monotonic())
            calls = [self._call(leader, part, left_s) for leader, part in asked.items()]
            for call in calls:
                self._collect(call, deadline_s + _GRACE_S, found)
            if len(found) == len(times):
                return found
            if time.monotonic() >= deadline_s:
                missing = [tp for tp in times if tp not in found]
                names = ", ".join(map(str, missing))
                raise self._network.timed_out(f"the offsets of {names} could not be had", missing)
            self._network.check_wanted()
            if calls:
                self._network.refresh_soon()
            time.sleep(self._network.pauses.first_s if calls else _POLL_S)

    def _call(
        self, leader: int, times: Mapping[TopicPartition, int], timeout_s: float
    ) -> Future[m.ListOffsetsResponse]:
        request = list_offsets.request(
            times,
            view=self._network.view,
            isolation_level=self._isolation,
            timeout_ms=self._settings.request_timeout_ms,
        )
        return self._network.call(leader, request, how=RequestOptions(timeout_s))

    def _collect(
        self, call: Future[m.ListOffsetsResponse], deadline_s: float, found: dict[TopicPartition, OffsetAnswer]
    ) -> None:
        try:
            answers = list_offsets.answers(self._network.outcome(call, deadline_s))
        except TimeoutError:
            return
        except KafkaError as error:
            if error.retriable or error.code in STALE:
                return
            raise
        for tp, one in answers.items():
            if one.error is None:
                found[tp] = one
            elif not one.error.retriable:
                raise one.error

    def _refuse_unknown(self, tp: TopicPartition) -> None:
        """Raise KafkaError if metadata shows that asking again cannot help."""
        info = self._network.view.topics.get(tp.topic)
        if info is not None and info.error:
            error = errors.lookup(info.error)
            missing = error.code == errors.UNKNOWN_TOPIC_OR_PARTITION and not self._settings.allow_auto_create_topics
            if missing or not error.retriable:
                raise KafkaError(error.code, f"topic {tp.topic!r}: {error.meaning}")
        elif info is not None and not 0 <= tp.partition < len(info.partitions):
            raise KafkaError(
                errors.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {tp.topic!r} has partitions 0 to {len(info.partitions) - 1}, not {tp.partition}",
            )
