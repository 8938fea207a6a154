"""DescribeLogDirs: the partitions of each log dir, their sizes, and the free space of its disk (KIP-113, KIP-827).
AlterReplicaLogDirs: moves partitions between the log dirs of this broker (KIP-113)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection

from pybroker import core, errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.replicas import Replicas
from pybroker.tasks import in_shares

Logs = dict[TopicPartition, core.Partition]


class DescribeLogDirs:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def __call__(self, request: m.DescribeLogDirsRequest, call: Call) -> m.DescribeLogDirsResponse:
        """Describe every log dir. Unknown partitions are left out, as in Kafka."""
        wanted = None
        if request.topics is not None:
            wanted = set[TopicPartition]()
            async for share in in_shares((topic.topic, p) for topic in request.topics for p in topic.partitions):
                wanted.update(TopicPartition(*each) for each in share)
        sizes = await self._sizes(wanted)
        results = [
            await asyncio.to_thread(self._describe, log_dir, sizes.get(log_dir, {}), wanted)
            for log_dir in self._replicas.log_dirs
        ]
        return m.DescribeLogDirsResponse(results=results)

    async def _sizes(self, wanted: Collection[TopicPartition] | None) -> dict[LogDir, Logs]:
        found: dict[LogDir, Logs] = {}
        if wanted is None:
            replicas = list(self._replicas)
        else:
            replicas = []
            async for some in in_shares(list(wanted)):
                replicas += [replica for key in some if (replica := self._replicas.get(*key)) is not None]
        async for those in in_shares(replicas):
            for replica in those:
                if replica.log is not None and replica.directory is not None:
                    found.setdefault(replica.directory, {})[replica.key] = replica.log
        return found

    def _describe(
        self, log_dir: LogDir, logs: Logs, wanted: Collection[TopicPartition] | None
    ) -> m.DescribeLogDirsResponse.Results:
        """Describe one log dir. Call on a thread, as a disk may hang."""
        kind = m.DescribeLogDirsResponse.Results
        path = os.path.abspath(log_dir.path)
        if log_dir.failure:
            return kind(error_code=errors.KAFKA_STORAGE_ERROR, log_dir=path)
        try:
            disk = os.statvfs(path)
        except OSError:
            return kind(error_code=errors.KAFKA_STORAGE_ERROR, log_dir=path)
        found = [
            (key, log.size, max(log.high_watermark - log.log_end_offset, 0), False) for key, log in sorted(logs.items())
        ]
        moving = self._replicas.moves.here(log_dir)
        found += [(key, size, lag, True) for key, size, lag in moving if wanted is None or key in wanted]
        topics: dict[str, m.DescribeLogDirsResponse.Results.Topics] = {}
        for key, size, lag, is_future in found:
            topic = topics.setdefault(key.topic, kind.Topics(name=key.topic))
            topic.partitions.append(
                kind.Topics.Partitions(
                    partition_index=key.partition, partition_size=size, offset_lag=lag, is_future_key=is_future
                )
            )
        return kind(
            log_dir=path,
            topics=list(topics.values()),
            total_bytes=disk.f_blocks * disk.f_frsize,
            usable_bytes=disk.f_bavail * disk.f_frsize,
        )


def failed(request: m.DescribeLogDirsRequest, code: int, message: str) -> m.DescribeLogDirsResponse:
    return m.DescribeLogDirsResponse(error_code=code)


class AlterReplicaLogDirs:
    """Begins moves, changes their target, or cancels them: a partition that is to be where it is stays."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(self, request: m.AlterReplicaLogDirsRequest, call: Call) -> m.AlterReplicaLogDirsResponse:
        kind = m.AlterReplicaLogDirsResponse.Results
        dirs = {os.path.abspath(log_dir.path): log_dir for log_dir in self._replicas.log_dirs}
        topics: dict[str, dict[int, int]] = {}
        for asked in request.dirs:
            for topic in asked.topics:
                codes = topics.setdefault(topic.name, {})
                for index in topic.partitions:
                    codes[index] = self._move(TopicPartition(topic.name, index), dirs.get(asked.path))
        return m.AlterReplicaLogDirsResponse(
            results=[
                kind(
                    topic_name=name,
                    partitions=[kind.Partitions(partition_index=p, error_code=code) for p, code in codes.items()],
                )
                for name, codes in topics.items()
            ]
        )

    def _move(self, key: TopicPartition, to: LogDir | None) -> int:
        """Begin a move. Return an error code. `to` was looked up by its absolute path only, as in Kafka."""
        if to is None:
            return errors.LOG_DIR_NOT_FOUND
        if to.failure:
            return errors.KAFKA_STORAGE_ERROR
        try:
            replica = self._replicas.held(*key)
        except KafkaError as problem:  # this API has always answered REPLICA_NOT_AVAILABLE
            self._replicas.prefer(key, to)
            elsewhere = problem.code == errors.NOT_LEADER_OR_FOLLOWER
            return errors.REPLICA_NOT_AVAILABLE if elsewhere else problem.code
        if replica.offline:
            return errors.KAFKA_STORAGE_ERROR
        self._replicas.moves.begin(replica, to)
        return errors.NONE


def alter_failed(request: m.AlterReplicaLogDirsRequest, code: int, message: str) -> m.AlterReplicaLogDirsResponse:
    kind = m.AlterReplicaLogDirsResponse.Results
    return m.AlterReplicaLogDirsResponse(
        results=[
            kind(
                topic_name=topic.name,
                partitions=[kind.Partitions(partition_index=p, error_code=code) for p in topic.partitions],
            )
            for asked in request.dirs
            for topic in asked.topics
        ]
    )
