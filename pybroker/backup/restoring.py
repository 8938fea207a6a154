"""Restores topics of a backup into a running cluster: as new topics, through Produce.

Offsets begin at 0 and have no gaps in the new topic, so a record keeps its offset only if its log began at 0 and had
no gaps. The offsets of groups are translated to the record that they stood at. Topics that a run created are deleted
again if it fails: a topic that is there is a topic that is whole.
"""

import contextlib
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.backup.batches import Advance, Fates
from pybroker.backup.manifest import GroupOffset, Manifest, PartitionBackup, TopicBackup
from pybroker.backup.rewriting import Producible, producible
from pybroker.backup.sending import PartitionSender, producer_id
from pybroker.backup.taking import Connect, matching
from pybroker.backup.targets import Target
from pybroker.backup.verifying import file_pieces
from pybroker.client.admin import (
    EARLIEST,
    LATEST,
    Admin,
    Alteration,
    Committed,
    ConfigOperation,
    ConfigResource,
    ResourceType,
)
from pybroker.client.net.metadata import RETRY_BACKOFF_S
from pybroker.client.net.network import NetworkClient
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.patience import patiently

THREADS: Final = 4
"""Partitions that are restored at a time."""
DELETION_S: Final = 30.0
"""How long the deletion of an earlier topic of the same name may go on."""
INCOMPLETE: Final = "the last run of this backup did not end: partitions may end at different moments"
_MIN_ISR: Final = "min.insync.replicas"
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_SET_LATER: Final = "message.timestamp."
_NOT_RESTORED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class RestoreOptions(NamedTuple):
    """The choices of a restore.

    name: of the only topic; None keeps the names. append: restore into topics that hold records. configs: instead of
    those of the backup. replication_factor: None: that of the backup, or as many as there are brokers."""

    topics: Sequence[str] = ("*",)
    name: str | None = None
    append: bool = False
    configs: Mapping[str, str] = {}
    replication_factor: int | None = None
    groups: bool = True


class RestoredTopic(NamedTuple):
    """The result for a topic. `moved`: partitions whose records have other offsets than before."""

    backup: TopicBackup
    name: str
    records: int
    left_out: int
    """Records of transactions that were not committed."""
    moved: Sequence[int]


class Restored(NamedTuple):
    """The result of a restore: the groups whose offsets were set, and warnings for the operator."""

    topics: Sequence[RestoredTopic]
    groups: Sequence[str]
    warnings: Sequence[str]


class OffsetTranslation:
    """Offsets of a partition's log before, and the offsets that they became; filled in as records are acknowledged."""

    def __init__(self, wanted: Sequence[int]) -> None:
        self.found: dict[int, int] = {}
        self._left = sorted(set(wanted), reverse=True)

    def note(self, offsets: Sequence[int], base: int) -> None:
        """Note that records of these offsets are now at `base` and the offsets after it."""
        while self._left and self._left[-1] <= offsets[-1]:
            wanted = self._left.pop()
            self.found[wanted] = base + bisect_left(offsets, wanted)

    def keep(self, first: int, end: int) -> None:
        """Note that offsets are as they were, in a log from `first` to `end`."""
        self.found.update({offset: max(first, min(offset, end)) for offset in self._left})
        self._left.clear()

    def finish(self, end: int) -> None:
        """Note that the log ends at `end`: the rest stands there."""
        self.found.update(dict.fromkeys(self._left, end))
        self._left.clear()


class _Job:
    """The restore of one partition, and its figures."""

    def __init__(self, tp: TopicPartition, source: PartitionBackup, offsets: Sequence[GroupOffset]) -> None:
        self.tp = tp
        self.source = source
        self.translation = OffsetTranslation([at.offset for at in offsets])
        self.records = self.left_out = 0
        self.moved = False
        self.end = 0

    def acknowledged(self, batch: Producible, base: int) -> None:
        self.translation.note(batch.offsets, base)
        self.moved |= batch.offsets[0] != base or batch.offsets[-1] - base != batch.size - 1
        self.records += batch.size
        self.end = base + batch.size


class RestoreRun:
    """One restore, from the manifest to the offsets of groups."""

    def __init__(
        self, connect: Connect, network: Callable[[], NetworkClient], target: Target, manifest: Manifest,
        options: RestoreOptions,
    ) -> None:
        self._connect = connect
        self._make_network = network
        self._target = target
        self._manifest = manifest
        self._options = options
        self._stop = threading.Event()
        self._created: list[str] = []
        self._set_later: dict[str, dict[str, str]] = {}
        self._warnings: list[str] = []

    def create_topics(self) -> Restored:
        """Create the topics that match, or take those that are there and empty, without records. KafkaError."""
        topics = self.chosen()
        with self._connect() as admin:
            self._check(admin, topics)
            self._create(admin, topics)
            self._set_rest(admin)
        return Restored([RestoredTopic(topic, name, 0, 0, ()) for topic, name in self.named()], [], self._warnings)

    def set_groups(self) -> Restored:
        """Set the offsets of groups in topics whose records have their offsets: restored into log dirs. An offset
        outside of its log is set to the nearer end. KafkaError."""
        topics = self.chosen()
        jobs = self._jobs(topics)
        with self._connect() as admin:
            names = [self._name(topic) for topic in topics]
            first, last = _offsets(admin, names, EARLIEST), _offsets(admin, names, LATEST)
            for job in (job for of_topic in jobs.values() for job in of_topic):
                job.translation.keep(first.get(job.tp, 0), last.get(job.tp, 0))
            return Restored([], self._set_groups(admin, jobs), self._warnings)

    def restore(self, *, begin: Callable[[int], Advance]) -> Restored:
        """Restore the topics that match. `begin` gets the number of bytes to read. KafkaError, OSError; the
        KeyboardInterrupt of Ctrl-C has a sentence that says what stands."""
        topics = self.chosen()
        if not self._manifest.complete:
            self._warnings.append(INCOMPLETE)
        with self._connect() as admin:
            self._check(admin, topics)
            jobs = self._jobs(topics)
            try:
                self._create(admin, topics)
                ends = _offsets(admin, [self._name(topic) for topic in topics], LATEST)
                for job in (job for of_topic in jobs.values() for job in of_topic):
                    job.end = ends[job.tp]
                self._send_all([job for of_topic in jobs.values() for job in of_topic], begin)
                self._set_rest(admin)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._undone(self._clean_up())) from None
            except BaseException:
                self._clean_up()
                raise
            try:
                groups = self._set_groups(admin, jobs) if self._options.groups else []
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._without_groups(topics)) from None
        restored = [
            RestoredTopic(
                topic, self._name(topic), sum(job.records for job in own), sum(job.left_out for job in own),
                [job.tp.partition for job in own if job.moved],
            )
            for topic, own in ((topic, jobs[topic.name]) for topic in topics)
        ]  # fmt: skip
        return Restored(restored, groups, self._warnings)

    # -- topics and partitions chosen ----------------------------------------------------------------------------------

    def named(self) -> list[tuple[TopicBackup, str]]:
        """The topics that match, each with the name that it gets. KafkaError."""
        return [(topic, self._name(topic)) for topic in self.chosen()]

    def chosen(self) -> list[TopicBackup]:
        """The topics of the backup that match. KafkaError if there is none."""
        by_name = {topic.name: topic for topic in self._manifest.topics}
        names = matching(self._options.topics, by_name, "the backup")
        if self._options.name is not None and len(names) != 1:
            words = f"{self._options.name} can be the name of one topic only, and {len(names)} are chosen"
            raise KafkaError(errors.INVALID_REQUEST, words)
        return [by_name[name] for name in names]

    def _name(self, topic: TopicBackup) -> str:
        return self._options.name or topic.name

    def _jobs(self, topics: Sequence[TopicBackup]) -> dict[str, list[_Job]]:
        """The partitions of each topic."""
        stood: dict[TopicPartition, list[GroupOffset]] = {}
        for offsets in self._manifest.groups.values():
            for at in offsets:
                stood.setdefault(TopicPartition(at.topic, at.partition), []).append(at)
        return {
            topic.name: [
                _Job(
                    TopicPartition(self._name(topic), p.partition), p,
                    stood.get(TopicPartition(topic.name, p.partition), []),
                )
                for p in topic.partitions
            ]
            for topic in topics
        }  # fmt: skip

    # -- topics --------------------------------------------------------------------------------------------------------

    def _check(self, admin: Admin, topics: Sequence[TopicBackup]) -> None:
        """Refuse topics that are there and cannot be restored into, before anything is changed."""
        there = {topic.name: topic for topic in admin.topics()}
        for topic in topics:
            name = self._name(topic)
            if name not in there:
                continue
            count = len(there[name].partitions)
            if count != len(topic.partitions):
                words = f"topic {name} exists with {count} partitions, and the backup has {len(topic.partitions)}"
                raise KafkaError(errors.INVALID_PARTITIONS, f"{words}: restore it under another name, by --as")
            first, last = _offsets(admin, [name], EARLIEST), _offsets(admin, [name], LATEST)
            if first != last and not self._options.append:
                words = "restore it under another name (--as), or behind them (--append)"
                raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"topic {name} exists and holds records: {words}")
            self._warnings.append(f"topic {name} was there: its configs are as they were")

    def _create(self, admin: Admin, topics: Sequence[TopicBackup]) -> None:
        brokers = len(admin.describe_cluster().nodes)
        for topic in topics:
            name = self._name(topic)
            if admin.exists(name):
                continue
            replicas = self._options.replication_factor or min(topic.replication_factor, brokers)
            if replicas < topic.replication_factor:
                words = f"topic {name} has {replicas} replicas, and had {topic.replication_factor}"
                self._warnings.append(f"{words}: so many brokers are there")
            configs = {k: v for k, v in topic.configs.items() if k not in _NOT_RESTORED}
            configs.update(self._options.configs)
            least = configs.get(_MIN_ISR, "")
            if _COUNT.fullmatch(least) and int(least) > replicas:  # the broker refuses what is no number
                words = f"topic {name} has no {_MIN_ISR}: {configs.pop(_MIN_ISR)} is more than its replicas"
                self._warnings.append(words)
            self._set_later[name] = {k: v for k, v in configs.items() if k.startswith(_SET_LATER)}
            now = {k: v for k, v in configs.items() if k not in self._set_later[name]}
            self._create_one(admin, name, len(topic.partitions), replicas, now)

    def _create_one(self, admin: Admin, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        """Create a topic; wait for the end of an earlier one's deletion, which brokers do not show any more."""
        deadline_s = time.monotonic() + DELETION_S
        self._created.append(name)
        while True:
            try:
                admin.create_topic(name, partitions=partitions, replication_factor=replicas, configs=configs)
                return
            except KafkaError as error:
                exists = error.code == errors.TOPIC_ALREADY_EXISTS
                if not exists or time.monotonic() > deadline_s or admin.exists(name):
                    if not error.retriable:  # refused: a topic of this name is another client's
                        self._created.remove(name)
                    raise
            time.sleep(RETRY_BACKOFF_S)

    def _set_rest(self, admin: Admin) -> None:
        """Set the configs by which a broker would have changed or refused the restored records."""
        for name, configs in self._set_later.items():
            if configs:
                changes = [Alteration(k, ConfigOperation.SET, v) for k, v in configs.items()]
                admin.alter_configs(ConfigResource(ResourceType.TOPIC, name), changes)

    def _clean_up(self) -> list[str]:
        """Delete the topics that this run created; return those that could not be deleted. The connection is a new one:
        an interrupted one may be in the middle of an answer."""
        left = list(self._created)
        with contextlib.suppress(KafkaError), self._connect() as admin:
            for name in self._created:
                with contextlib.suppress(KafkaError):
                    admin.delete_topic(name)
                    left.remove(name)
        return left

    def _undone(self, left: Sequence[str]) -> str:
        """The sentence for Ctrl-C before all records were restored; `left`: new topics that could not be deleted."""
        if left:
            words = f"interrupted: {', '.join(left)} could not be deleted again, and the restore is not complete"
            return f"{words}: delete it, and restore anew"
        there = [name for _, name in self.named() if name not in self._created]
        kept = f"; {', '.join(there)} may have a part of the records" if there else ""
        return f"interrupted: the topics that were created are deleted again{kept}; the same command begins anew"

    def _without_groups(self, topics: Sequence[TopicBackup]) -> str:
        """The sentence for Ctrl-C after all records were restored."""
        names = " ".join(self._name(topic) for topic in topics)
        return (
            "interrupted: all records are restored, but maybe not the offsets of all groups: set these by pybroker "
            f"groups reset-offsets, or delete {names} and restore anew"
        )

    # -- records -------------------------------------------------------------------------------------------------------

    def _send_all(self, jobs: Sequence[_Job], begin: Callable[[int], Advance]) -> None:
        advance = begin(sum(job.source.size for job in jobs))
        queue = sorted(jobs, key=lambda job: job.source.size)
        network = self._make_network()
        try:
            producer = producer_id(network, self._timeout_s(network))
            with ThreadPoolExecutor(THREADS, "restore") as pool:
                workers = [pool.submit(self._work, queue, network, producer, advance) for _ in range(THREADS)]
                try:
                    wait(workers, return_when=FIRST_EXCEPTION)
                finally:
                    self._stop.set()
                for worker in workers:
                    worker.result()
        finally:
            network.close()

    @staticmethod
    def _timeout_s(network: NetworkClient) -> float:
        return float(network.settings.request_timeout_ms / 1000)

    def _work(self, queue: list[_Job], network: NetworkClient, producer: tuple[int, int], advance: Advance) -> None:
        while not self._stop.is_set():
            try:
                job = queue.pop()
            except IndexError:
                return
            sender = PartitionSender(network, job.tp, producer, job.acknowledged, self._timeout_s(network))
            self._send(job, sender, advance)
            sender.finish()
            job.translation.finish(job.end)

    def _send(self, job: _Job, sender: PartitionSender, advance: Advance) -> None:
        """Send all of a partition's batches that are records."""
        fates = Fates(job.source.aborted, job.source.open)
        for file in job.source.files:
            for piece in file_pieces(self._target, job.source, file):
                for position, batch in piece.batches:
                    made = producible(batch, piece.data[position:], job.source.start_offset, fates, str(job.tp))
                    if made is not None:
                        sender.send(made)
                    elif not batch.is_control and not fates.committed(batch):
                        job.left_out += batch.count
                if self._stop.is_set():
                    return
                advance(len(piece.data), len(piece.data))

    # -- groups --------------------------------------------------------------------------------------------------------

    def _set_groups(self, admin: Admin, jobs: Mapping[str, Sequence[_Job]]) -> list[str]:
        """Set the offsets of groups, translated; a group that cannot be set is a warning, as its records are there."""
        translations = {(topic, job.tp.partition): job for topic, of_topic in jobs.items() for job in of_topic}
        done = []
        for group, offsets in self._manifest.groups.items():
            wanted = {
                job.tp: Committed(job.translation.found[at.offset], metadata=at.metadata)
                for at in offsets
                if (job := translations.get((at.topic, at.partition))) is not None
            }
            if not wanted:
                continue
            try:
                admin.alter_group_offsets(group, wanted)
                done.append(group)
            except KafkaError as error:
                why = "it has members: stop them and set its offsets" if error.code == errors.UNKNOWN_MEMBER_ID else ""
                self._warnings.append(f"the offsets of group {group} were not set: {why or error.message}")
        return done


def _offsets(admin: Admin, names: Sequence[str], timestamp: int) -> dict[TopicPartition, int]:
    """The first or last offset of each partition of these topics. Waits for topics and leaders that the broker does not
    know yet. KafkaError(LEADER_NOT_AVAILABLE) for a partition without a leader: it may hold records."""

    def look() -> dict[TopicPartition, int]:
        found = {}
        for tp, offset in admin.offsets(admin.topics(names), timestamp).items():
            if offset is None:
                words = f"the leader of {tp} did not answer: nothing was restored"
                raise KafkaError(errors.LEADER_NOT_AVAILABLE, words)
            found[tp] = offset
        return found

    return patiently(look, admin.timeout_s)
