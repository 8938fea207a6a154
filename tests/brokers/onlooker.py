"""An onlooker at each broker of a campaign: it sends a client's requests, on connections that no fault cuts.

It sees answers that a library hides: a broker that is no longer leader or coordinator must answer an error or the
truth, never an older truth. Each answer is compared with what was known before the request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pybroker import errors
from pybroker.protocol import messages as m
from tests.asking import Asker
from tests.lives.clients import Worker
from tests.lives.history import History

EVERY_S = 0.5


class Onlooker(Worker):
    """Asks one broker for the ends of partitions, the records there, and the offsets of groups."""

    def __init__(
        self, number: int, port: int, groups: list[str], history: History, topic: str, partitions: int, seed: int
    ) -> None:
        super().__init__(f"onlooker-{number}", history, topic, partitions, seed)
        self.port = port
        self.groups = groups
        self.by = f" as broker {number} says"

    def work(self) -> None:
        while not self.ended.wait(EVERY_S):
            try:
                with Asker(self.port) as asker:
                    while not self.ended.wait(EVERY_S):
                        for look in (self.ends, self.fetches, self.commits):
                            look(asker.ask)
            except (OSError, struct.error):  # the broker is down, or its connections have ended
                continue

    def ends(self, ask: Callable[..., Any]) -> None:
        kind = m.ListOffsetsRequest.Topics
        before = {partition: self.history.end(partition) for partition in range(self.partitions)}
        asked = [kind.Partitions(partition_index=p, current_leader_epoch=-1, timestamp=-1) for p in before]
        told = ask("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=[kind(name=self.topic, partitions=asked)])
        for found in told.topics[0].partitions:
            if found.error_code == errors.NONE:
                self.history.check_end(found.partition_index, found.offset, before[found.partition_index], self.by)

    def fetches(self, ask: Callable[..., Any]) -> None:
        """Fetch at the end: a consumer that has read everything is never out of range, or it would start anew."""
        kind = m.FetchRequest.Topics
        before = {partition: self.history.end(partition) for partition in range(self.partitions)}
        asked = [
            kind.Partitions(
                partition=partition, fetch_offset=end, current_leader_epoch=-1, last_fetched_epoch=-1,
                log_start_offset=-1, partition_max_bytes=1,
            )
            for partition, end in before.items()
        ]  # fmt: skip
        told = ask(
            "Fetch", 11, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[kind(topic=self.topic, partitions=asked)],
        )  # fmt: skip
        for found in (found for topic in told.responses for found in topic.partitions):
            if found.error_code == errors.OFFSET_OUT_OF_RANGE:
                at = before[found.partition_index]
                self.history.accuse("end", f"partition {found.partition_index}: {at} is out of range{self.by}")

    def commits(self, ask: Callable[..., Any]) -> None:
        kind = m.OffsetFetchRequest.Topics
        for group in self.groups:
            before = {partition: self.history.stands(group, partition) for partition in range(self.partitions)}
            told = ask("OffsetFetch", 7, group_id=group, topics=[kind(name=self.topic, partition_indexes=[*before])],
                       require_stable=False)  # fmt: skip
            if told.error_code == errors.NONE:
                for found in told.topics[0].partitions:
                    partition, offset = found.partition_index, max(found.committed_offset, 0)
                    if found.error_code == errors.NONE:
                        self.history.check_committed(partition, offset, group, before[partition], self.by)
