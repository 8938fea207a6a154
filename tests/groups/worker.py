"""A consumer in its own process, which can be killed: `python -m tests.groups.worker CLIENT BOOTSTRAP OPTIONS`.

OPTIONS is JSON: team.Options. The worker prints one line each: `assigned 0 3`, its partitions when they change; `read
3:17`, partition and value of a record; `kept 3:18`, a partition and its committed offset; `alive`, once a second. It
leaves the group on SIGTERM, or after its limit of records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Protocol

Batch = list[tuple[int, int, bytes]]
"""Records: partition, offset, value."""
POLL_MS = 50
PATIENT_POLL_MS = 1_000
HEARTBEAT_MS = 300
CALL_S_MAX = 30.0
ALIVE_S = 1.0


class Member(Protocol):
    """The calls of a worker to its client. Errors while a broker is down are of the types in `failures`."""

    failures: tuple[type[Exception], ...]

    def poll(self) -> Batch: ...
    def assigned(self) -> Iterable[int]: ...
    def position(self, partition: int) -> int:
        """The next offset to read from an assigned partition."""

    def commit(self, partition: int, offset: int) -> None: ...
    def commit_async(self, partition: int, offset: int) -> None:
        """Commit asynchronously, and return when the commit is answered."""

    def close(self) -> None: ...


class Confluent:
    def __init__(self, bootstrap: str, o: SimpleNamespace) -> None:
        import confluent_kafka as ck

        self._ck, self._topic = ck, o.topic
        self.failures = (ck.KafkaException,)
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": o.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": o.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "reconnect.backoff.max.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky" if o.cooperative else "range",
            "on_commit": self._committed,
            "log_level": 0,
        }
        self._answers: list[Any] = []
        self._came: list[Any] = []  # received while waiting for an answer
        self._consumer = ck.Consumer(config | ({"group.instance.id": o.instance} if o.instance else {}))
        self._consumer.subscribe([o.topic])

    def _committed(self, error: Any, _: Any) -> None:
        self._answers.append(error)

    def poll(self) -> Batch:
        found, self._came = self._came + self._consumer.consume(100, POLL_MS / 1000), []
        return [(m.partition(), m.offset(), m.value()) for m in found if m.error() is None]

    def assigned(self) -> Iterable[int]:
        return (tp.partition for tp in self._consumer.assignment())

    def position(self, partition: int) -> int:
        return int(self._consumer.position([self._ck.TopicPartition(self._topic, partition)])[0].offset)

    def commit(self, partition: int, offset: int) -> None:
        self._consumer.commit(offsets=[self._ck.TopicPartition(self._topic, partition, offset)], asynchronous=False)

    def commit_async(self, partition: int, offset: int) -> None:
        self._answers.clear()
        self._consumer.commit(offsets=[self._ck.TopicPartition(self._topic, partition, offset)])
        self._consumer.pause(self._consumer.assignment())
        while not self._answers:
            self._came += filter(None, [self._consumer.poll(0.05)])
        self._consumer.resume(self._consumer.assignment())
        if self._answers[0] is not None:
            raise self._ck.KafkaException(self._answers[0])

    def close(self) -> None:
        self._consumer.close()


def settings(bootstrap: str, o: SimpleNamespace) -> dict[str, Any]:
    """The settings that have the same names in kafka-python and aiokafka."""
    return {
        "bootstrap_servers": bootstrap,
        "group_id": o.group,
        "group_instance_id": o.instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": o.session_ms,
        "heartbeat_interval_ms": HEARTBEAT_MS,
    }


class KafkaPython:
    """A kafka-python consumer that gets the topic's metadata before it subscribes, and polls with a long timeout.

    A leader of 3.0.12 that finds partitions after it has joined joins again. If poll() ends during that SyncGroup, the
    answer is lost: the client believes to be a member, but sends no heartbeat and owns no partition, forever."""

    def __init__(self, bootstrap: str, o: SimpleNamespace) -> None:
        warnings.simplefilter("ignore")
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        self._kafka, self._topic = kafka, o.topic
        self.failures = (kafka.errors.KafkaError,)
        self._consumer = kafka.KafkaConsumer(
            **settings(bootstrap, o),
            reconnect_backoff_max_ms=200,
            partition_assignment_strategy=[CooperativeStickyAssignor if o.cooperative else RangePartitionAssignor],
        )
        self._consumer.partitions_for_topic(o.topic)
        self._consumer.subscribe([o.topic])

    def poll(self) -> Batch:
        found = self._consumer.poll(timeout_ms=PATIENT_POLL_MS)
        return [(r.partition, r.offset, r.value) for records in found.values() for r in records]

    def assigned(self) -> Iterable[int]:
        return (tp.partition for tp in self._consumer.assignment())

    def position(self, partition: int) -> int:
        return int(self._consumer.position(self._kafka.TopicPartition(self._topic, partition)) or 0)

    def _offsets(self, partition: int, offset: int) -> Any:
        return {self._kafka.TopicPartition(self._topic, partition): self._kafka.OffsetAndMetadata(offset, "", -1)}

    def commit(self, partition: int, offset: int) -> None:
        self._consumer.commit(self._offsets(partition, offset))

    def commit_async(self, partition: int, offset: int) -> None:
        answer = self._consumer.commit_async(self._offsets(partition, offset))
        while not answer.is_done:
            time.sleep(POLL_MS / 1000)
        if answer.failed():
            raise answer.exception

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class Aiokafka:
    """An aiokafka consumer on a loop that runs only during calls, which a worker makes all the time."""

    def __init__(self, bootstrap: str, o: SimpleNamespace) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition, errors
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        self._partition, self._topic = TopicPartition, o.topic
        self.failures = (errors.KafkaError, TimeoutError)
        self._loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                o.topic,
                **settings(bootstrap, o),
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            await consumer.start()
            return consumer

        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> Batch:
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=POLL_MS))
        return [(r.partition, r.offset, r.value) for records in found.values() for r in records]

    def assigned(self) -> Iterable[int]:
        return (tp.partition for tp in self._consumer.assignment())

    def position(self, partition: int) -> int:
        position = self._consumer.position(self._partition(self._topic, partition))
        return int(self._loop.run_until_complete(asyncio.wait_for(position, CALL_S_MAX)))

    def commit(self, partition: int, offset: int) -> None:
        commit = self._consumer.commit({self._partition(self._topic, partition): offset})
        self._loop.run_until_complete(asyncio.wait_for(commit, CALL_S_MAX))

    commit_async = commit  # aiokafka has no other way here

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


CLIENTS: dict[str, type[Member]] = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


def say(what: str, *values: object) -> None:
    print(what, *values, flush=True)


def keep(member: Member, how: str, ends: dict[int, int]) -> None:
    """Commit, and forget the committed offsets.

    After a commit that a rebalance or a dead broker made fail, records are read again by some member, or stay with this
    one, which then commits them the next time.
    """
    for partition, offset in list(ends.items()):
        with contextlib.suppress(*member.failures):
            if partition in member.assigned() and member.position(partition) >= offset:
                (member.commit if how == "sync" else member.commit_async)(partition, offset)
                say("kept", f"{partition}:{offset}")
            del ends[partition]


def main(client: str, bootstrap: str, options: str) -> None:
    o = SimpleNamespace(**json.loads(options))
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    member = CLIENTS[client](bootstrap, o)  # type: ignore[call-arg]
    held: list[int] = []
    ends: dict[int, int] = {}
    left = o.limit
    alive = time.monotonic()
    while not ended and left != 0:
        if time.monotonic() - alive > ALIVE_S:
            alive = time.monotonic()
            say("alive")
        batch: Batch = []
        with contextlib.suppress(*member.failures):
            batch = member.poll()
        if left is not None:
            batch = batch[:left]
            left -= len(batch)
        if (now := sorted(member.assigned())) != held:
            held = now
            say("assigned", *held)
        for partition, offset, value in batch:
            say("read", f"{partition}:{value.decode()}")
            ends[partition] = offset + 1
        keep(member, o.commit, ends)
    member.close()
    say("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
