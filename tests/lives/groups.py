"""The groups of a campaign: the member of each commits its position, and asks for it when it returns."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import confluent_kafka as ck
import kafka
from aiokafka import AIOKafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.clients.adapters.aio import LoopThread, stopped
from tests.clients.adapters.confluent import QUIET
from tests.clients.adapters.kafka_python import RECONNECT, translated
from tests.clients.adapters.neutral import Refused
from tests.lives.clients import Worker
from tests.lives.history import History

ASK_MS = 10_000
SESSION_MS = 6000
READ = dict[int, list[tuple[int, bytes | None]]]
"""(offset, content) by partition."""


class Group(Worker):
    """A member of a group named after its library; a new one starts at times and after errors."""

    library = ""
    commits_alone = False
    """True if the member does nothing else while it commits, so that it never reads on after a commit."""

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__(f"{self.library}-group", history, topic, partitions, seed)
        self.bootstrap = bootstrap
        self.stood: dict[int, int] = {}
        """The last acknowledged offset of this member by partition."""

    def work(self) -> None:
        member = self.open()
        self.stood.clear()
        try:
            before = {partition: self.history.stands(self.name, partition) for partition in range(self.partitions)}
            for partition, offset in self.committed(member).items():
                self.history.check_committed(partition, offset, self.name, before[partition])
            self.subscribe(member)
            stop_at = time.monotonic() + self.random.uniform(10, 40)
            while not self.ended.is_set() and time.monotonic() < stop_at:
                self.turn(member)
        finally:
            self.close(member)

    def turn(self, member: Any) -> None:
        read = self.poll(member)
        for partition, records in read.items():
            for offset, content in records:
                self.history.read(partition, offset, content)
            self.history.check_position(partition, records[0][0], self.stood.pop(partition, 0), self.name)
        if read:
            with suppress(Refused, ck.KafkaException):  # a commit without an answer may be stored or not
                told = self.commit(member, {partition: records[-1][0] + 1 for partition, records in read.items()})
                for partition, offset in told.items():
                    self.history.committed(partition, offset, self.name)
                if self.commits_alone:
                    self.stood |= told

    def commits(self, offsets: Mapping[int, int]) -> None:
        """Record that a member is about to commit these offsets."""
        for partition, offset in offsets.items():
            self.history.committing(partition, offset, self.name)

    @abstractmethod
    def open(self) -> Any:
        """Open a consumer that has not joined yet."""

    @abstractmethod
    def committed(self, member: Any) -> dict[int, int]: ...

    @abstractmethod
    def subscribe(self, member: Any) -> None: ...

    @abstractmethod
    def poll(self, member: Any) -> READ: ...

    @abstractmethod
    def commit(self, member: Any, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """The committed offsets from the answer; empty if the answer comes later."""

    @abstractmethod
    def close(self, member: Any) -> None: ...


class ConfluentGroup(Group):
    """Commits asynchronously, as waiting for an answer may hang in the library when the coordinator moves.

    One commit is in flight at a time: the library may repeat one after later ones, and the group would go back to it.
    """

    library = "confluent-kafka"
    away = False

    def open(self) -> ck.Consumer:
        self.away = False
        return ck.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.name, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS, "on_commit": self.told, **QUIET,
        })  # fmt: skip

    def told(self, error: ck.KafkaError | None, offsets: list[ck.TopicPartition]) -> None:
        self.away = False
        for told in offsets if error is None else ():
            if told.error is None and told.offset >= 0:
                self.history.committed(told.partition, told.offset, self.name)

    def committed(self, member: ck.Consumer) -> dict[int, int]:
        asked = [ck.TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        found = member.committed(asked, timeout=ASK_MS / 1000)
        return {told.partition: max(told.offset, 0) for told in found if told.error is None}

    def subscribe(self, member: ck.Consumer) -> None:
        member.subscribe([self.topic])

    @property
    def is_polling(self) -> bool:
        frame = sys._current_frames().get(self.ident or 0)
        return frame is not None and frame.f_code is ConfluentGroup.poll.__code__

    def poll(self, member: ck.Consumer) -> READ:
        read: READ = {}
        for message in member.consume(100, 0.5):
            if message.error() is None:
                read.setdefault(message.partition(), []).append((message.offset(), message.value()))
        return read

    def commit(self, member: ck.Consumer, offsets: Mapping[int, int]) -> Mapping[int, int]:
        if not self.away:
            self.commits(offsets)
            member.commit(offsets=[ck.TopicPartition(self.topic, p, o) for p, o in offsets.items()])
            self.away = True
        return {}

    def close(self, member: ck.Consumer) -> None:
        member.close()


class KafkaPythonGroup(Group):
    library = "kafka-python"
    commits_alone = True

    def open(self) -> kafka.KafkaConsumer:
        how = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS}
        at = {"bootstrap_servers": self.bootstrap, **RECONNECT}
        return translated(lambda: kafka.KafkaConsumer(group_id=self.name, **at, **how))

    def committed(self, member: kafka.KafkaConsumer) -> dict[int, int]:
        def asked(partition: int) -> int:
            return member.committed(kafka.TopicPartition(self.topic, partition), timeout_ms=ASK_MS) or 0

        return translated(lambda: {partition: asked(partition) for partition in range(self.partitions)})

    def subscribe(self, member: kafka.KafkaConsumer) -> None:
        member.subscribe([self.topic])

    def poll(self, member: kafka.KafkaConsumer) -> READ:
        polled = translated(lambda: member.poll(500, max_records=100))
        return {tp.partition: [(r.offset, r.value) for r in records] for tp, records in polled.items() if records}

    def commit(self, member: kafka.KafkaConsumer, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self.commits(offsets)
        asked = {kafka.TopicPartition(self.topic, p): OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}
        translated(lambda: member.commit(asked, timeout_ms=ASK_MS))
        return offsets

    def close(self, member: kafka.KafkaConsumer) -> None:
        member.close(autocommit=False, timeout_ms=ASK_MS)


class AioGroup(Group):
    library = "aiokafka"

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__(bootstrap, history, topic, partitions, seed)
        self.loop = LoopThread()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.loop.close()

    def open(self) -> AIOKafkaConsumer:
        async def opened() -> AIOKafkaConsumer:
            member = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, group_id=self.name, enable_auto_commit=False,
                auto_offset_reset="earliest", session_timeout_ms=SESSION_MS,
            )  # fmt: skip
            try:
                await member.start()
            except BaseException:
                await stopped(member)
                raise
            return member

        return self.loop.run(opened())

    def committed(self, member: AIOKafkaConsumer) -> dict[int, int]:
        async def asked() -> dict[int, int]:
            places = {partition: TopicPartition(self.topic, partition) for partition in range(self.partitions)}
            return {partition: await member.committed(place) or 0 for partition, place in places.items()}

        return self.loop.run(asked())

    def subscribe(self, member: AIOKafkaConsumer) -> None:
        self.loop.loop.call_soon_threadsafe(member.subscribe, [self.topic])

    def poll(self, member: AIOKafkaConsumer) -> READ:
        polled = self.loop.run(member.getmany(timeout_ms=500, max_records=100))
        return {tp.partition: [(r.offset, r.value) for r in records] for tp, records in polled.items() if records}

    def commit(self, member: AIOKafkaConsumer, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self.commits(offsets)
        self.loop.run(member.commit({TopicPartition(self.topic, p): o for p, o in offsets.items()}))
        return offsets

    def close(self, member: AIOKafkaConsumer) -> None:
        self.loop.run(stopped(member))


GROUPS: tuple[type[Group], ...] = (ConfluentGroup, KafkaPythonGroup, AioGroup)
