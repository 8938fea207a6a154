"""Reads a partition from its leader, batch by batch as they are stored, below the high watermark."""

import time
from collections.abc import Iterator
from typing import Final

from pybroker import errors
from pybroker.backup.batches import WholeBatches, checked
from pybroker.client.admin import EARLIEST, Admin
from pybroker.client.net.metadata import RETRY_BACKOFF_S
from pybroker.client.net.network import STALE
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

FETCH_BYTES: Final = 8 << 20
_WAIT_MS: Final = 500

Found = m.FetchResponse.Responses.Partitions


class PartitionReader:
    """Reads one partition from its present leader. For one thread, as its admin client is."""

    def __init__(self, admin: Admin, tp: TopicPartition, topic_id: bytes, leader: int) -> None:
        """`leader`: the broker to ask first; -1 if it is not known."""
        self._admin = admin
        self._tp = tp
        self._topic_id = topic_id
        self.leader = leader

    def pieces(self, offset: int, end: int) -> Iterator[WholeBatches]:
        """Yield the batches from the one that holds `offset` to before `end`. Stops early at a gap that reaches `end`.

        KafkaError(OFFSET_OUT_OF_RANGE) if records from there on were deleted meanwhile, REQUEST_TIMED_OUT if nothing
        comes for the admin client's timeout."""
        moved_s = time.monotonic()
        while offset < end:
            found = self._fetch(offset, moved_s)
            piece = checked(memoryview(found.records or b""), f"{self._tp} at offset {offset}")  # type: ignore[arg-type]
            before = [each for each in piece.batches if each[1].last_offset < end]
            if before and before[0][1].last_offset >= offset:
                position, last = before[-1]
                yield WholeBatches(piece.data[: position + last.size], before)
                offset = last.last_offset + 1
                moved_s = time.monotonic()
            elif piece.batches:  # the next record is behind the end
                return
            elif time.monotonic() - moved_s > self._admin.timeout_s:
                words = f"{self._tp}: nothing came from offset {offset} on in {self._admin.timeout_s:g} s"
                raise KafkaError(errors.REQUEST_TIMED_OUT, f"{words}, and its end is {end}")

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest leader epoch up to this one that the leader knows; (-1, -1) if none."""
        kind = m.OffsetForLeaderEpochRequest.Topics
        wanted = kind.Partitions(partition=self._tp.partition, leader_epoch=epoch)
        asked = kind(topic=self._tp.topic, partitions=[wanted])
        began_s = time.monotonic()
        while True:
            try:
                answer = self._admin.cluster.node(self._leader()).request(m.OffsetForLeaderEpochRequest(topics=[asked]))
                (found,) = (p for topic in answer.topics for p in topic.partitions)
                if not found.error_code:
                    return found.leader_epoch, found.end_offset
                raise KafkaError(found.error_code, f"{self._tp}: {errors.lookup(found.error_code).meaning}")
            except KafkaError as error:
                self._retry(error, began_s)

    def start_offset(self) -> int:
        """The first offset of the log now."""
        began_s = time.monotonic()
        while True:
            found = self._admin.offsets(self._admin.topics([self._tp.topic]), EARLIEST)[self._tp]
            if found is not None:
                return found
            self._retry(KafkaError(errors.LEADER_NOT_AVAILABLE, f"no broker tells where {self._tp} begins"), began_s)

    def find_leader(self) -> int:
        """The broker that leads the partition, asked anew. KafkaError if there is none, or the topic is another one."""
        (topic,) = self._admin.topics([self._tp.topic])
        if topic.id != self._topic_id:
            raise KafkaError(errors.UNKNOWN_TOPIC_ID, f"topic {self._tp.topic} was deleted and created meanwhile")
        found = next((p for p in topic.partitions if p.partition == self._tp.partition), None)
        if found is None or found.leader < 0:
            raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"no broker leads {self._tp}")
        self.leader = found.leader
        return found.leader

    def _leader(self) -> int:
        return self.leader if self.leader >= 0 else self.find_leader()

    def _fetch(self, offset: int, began_s: float) -> Found:
        kind = m.FetchRequest.Topics
        wanted = kind.Partitions(partition=self._tp.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = m.FetchRequest(
            max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES,
            topics=[kind(topic=self._tp.topic, topic_id=self._topic_id, partitions=[wanted])],
        )  # fmt: skip
        while True:
            try:
                answer = self._admin.cluster.node(self._leader()).request(request)
                if answer.error_code:
                    raise KafkaError(answer.error_code)
                (found,) = (p for topic in answer.responses for p in topic.partitions)
                if not found.error_code:
                    return found
                meaning = errors.lookup(found.error_code).meaning
                raise KafkaError(found.error_code, f"{self._tp} at offset {offset}: {meaning}")
            except KafkaError as error:
                self._retry(error, began_s)
            except ValueError as error:
                raise KafkaError(errors.UNKNOWN_SERVER_ERROR, f"{self._tp}: the answer to a Fetch misses it") from error

    def _retry(self, error: KafkaError, began_s: float) -> None:
        """Pause before another try; raise the error unless it may pass."""
        if not (error.retriable or error.code in STALE) or time.monotonic() - began_s > self._admin.timeout_s:
            raise error
        self.leader = -1
        time.sleep(RETRY_BACKOFF_S)
