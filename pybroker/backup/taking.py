"""Takes a backup of topics from a running cluster.

The order makes it consistent: first the offsets of groups, then where each partition ends, so that no group is beyond
the records; then the records up to there; the manifest last. A run that is interrupted, or fails in some partitions,
writes a manifest of the files that it finished, and the next run goes on from them.
"""

import contextlib
import fnmatch
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.backup import local_logs
from pybroker.backup.batches import Advance
from pybroker.backup.local_logs import LocalLogs
from pybroker.backup.manifest import GroupOffset, Manifest, PartitionBackup, TopicBackup, damaged, load
from pybroker.backup.partition_copy import CopyOptions, CopyRequest, Discontinued, PartitionCopy
from pybroker.backup.targets import Target
from pybroker.client.admin import EARLIEST, LATEST, Admin, ConfigEntry, ConfigSource
from pybroker.client.net.metadata import TopicInfo
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

THREADS: Final = 4
"""Partitions that are copied at a time."""
_GLOB: Final = re.compile(r"[*?\[]")
Connect = Callable[[], Admin]
"""Makes an admin client of the cluster: each thread has its own."""


class BackupOptions(NamedTuple):
    """The choices of a backup.

    log_dirs: of brokers on this machine; None: those that brokers report, as far as they are here; (): none."""

    log_dirs: Sequence[Path] | None = None
    copy: CopyOptions = CopyOptions()
    threads: int = THREADS


class TakenTopic(NamedTuple):
    """The result of a run for a topic."""

    backup: TopicBackup
    new_bytes: int


class Taken(NamedTuple):
    """The result of a run. `failed`: a sentence for each partition whose new records are not in the backup."""

    manifest: Manifest
    topics: Sequence[TakenTopic]
    linked_bytes: int
    warnings: Sequence[str]
    failed: Sequence[str]


def matching(patterns: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """The names that match one of the patterns. KafkaError for a pattern that matches none."""
    found: set[str] = set()
    known = sorted(names)
    for pattern in patterns:
        matches = fnmatch.filter(known, pattern) if _GLOB.search(pattern) else [n for n in known if n == pattern]
        if not matches:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{what} has no topic {pattern}")
        found.update(matches)
    return sorted(found)


class BackupRun:
    """One run, from the first look at the cluster to the manifest."""

    def __init__(self, connect: Connect, target: Target, now_ms: int, options: BackupOptions) -> None:
        self._connect = connect
        self._target = target
        self._now_ms = now_ms
        self._options = options
        self._stop = threading.Event()
        self._copies: list[PartitionCopy] = []
        self._failed: list[str] = []

    def take(self, patterns: Sequence[str], *, begin: Callable[[int], Advance]) -> Taken:
        """Back up the topics that match. `begin` gets the number of offsets to copy. KafkaError, OSError."""
        data = self._target.read_manifest()
        earlier = None if data is None else load(data, self._target.name)
        with self._connect() as admin:
            cluster = admin.describe_cluster()
            if earlier is not None and cluster.id is not None and earlier.cluster_id != cluster.id:
                raise damaged(
                    f"{self._target.name} is a backup of cluster {earlier.cluster_id}, and this one is {cluster.id}: "
                    "back it up elsewhere"
                )
            topics = [topic for topic in admin.topics() if not topic.internal or topic.name in patterns]
            names = matching(patterns, (topic.name for topic in topics), "the cluster")
            topics = admin.topics(names)
            configs = admin.topic_configs(names)
            groups = _group_offsets(admin, names)
            wanted = self._wanted(admin, topics, configs, earlier)
            logs = self._logs(admin, cluster.id or "", [node.id for node in cluster.nodes])
        advance = begin(sum(each.end - (each.earlier.end_offset if each.earlier else each.start) for each in wanted))
        self._copies = [
            PartitionCopy(each, self._target, logs, self._options.copy, advance, self._stop.is_set) for each in wanted
        ]
        try:
            self._copy_all()
        except BaseException:
            with contextlib.suppress(OSError):  # the target is full: what it had before is still valid
                self._write(earlier, cluster.id or "", topics, configs, None)
            raise
        manifest = self._write(earlier, cluster.id or "", topics, configs, None if self._failed else groups)
        return self._report(earlier, manifest, names)

    # -- what there is -------------------------------------------------------------------------------------------------

    def _wanted(
        self, admin: Admin, topics: Sequence[TopicInfo], configs: Mapping[str, Sequence[ConfigEntry]],
        earlier: Manifest | None,
    ) -> list[CopyRequest]:
        starts, ends = admin.offsets(topics, EARLIEST), admin.offsets(topics, LATEST)
        run = _next_run(earlier)
        wanted = []
        for topic in topics:
            known = None if earlier is None else earlier.topic(topic.name)
            copies = {} if known is None else {p.partition: p for p in known.partitions}
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition)
                start, end = starts[tp], ends[tp]
                if start is None or end is None:
                    raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"no broker leads {tp}: nothing was backed up")
                wanted.append(
                    CopyRequest(
                        tp, topic.id, start, end, self._now_ms, copies.get(p.partition),
                        "" if known is None else known.topic_id, _tombstones_ms(configs[topic.name]),
                        f"anew-{run}/{tp}" if p.partition in copies else str(tp), p.leader,
                    )
                )  # fmt: skip
        return wanted

    def _logs(self, admin: Admin, cluster_id: str, brokers: Sequence[int]) -> LocalLogs:
        given = self._options.log_dirs
        if given is None:
            return local_logs.discovered(admin, cluster_id, brokers)
        try:
            return local_logs.given(given, cluster_id)
        except ValueError as error:
            raise KafkaError(errors.INVALID_CONFIG, str(error)) from error

    # -- the work ------------------------------------------------------------------------------------------------------

    def _copy_all(self) -> None:
        """Copy the partitions on threads of their own. What one fails with ends the others, unless it is only about
        that partition."""
        queue = list(reversed(self._copies))
        with ThreadPoolExecutor(min(self._options.threads, max(1, len(queue))), "backup") as pool:
            workers = [pool.submit(self._work, queue) for _ in range(self._options.threads)]
            try:
                wait(workers, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
            for worker in workers:
                worker.result()

    def _work(self, queue: list[PartitionCopy]) -> None:
        with self._connect() as admin:
            while not self._stop.is_set():
                try:
                    copy = queue.pop()
                except IndexError:
                    return
                try:
                    copy.run(admin)
                except Discontinued as why:
                    words = "back it up into another directory, or replace its earlier copy by --anew"
                    self._failed.append(f"{copy.wanted.tp} does not continue the backup: {why}; {words}")
                except KafkaError as error:
                    self._failed.append(error.message)

    # -- the manifest --------------------------------------------------------------------------------------------------

    def _write(
        self, earlier: Manifest | None, cluster_id: str, topics: Sequence[TopicInfo],
        configs: Mapping[str, Sequence[ConfigEntry]], groups: Mapping[str, tuple[GroupOffset, ...]] | None,
    ) -> Manifest:
        """Write the manifest of all that is finished, and then remove files that it does not name any more. `groups` is
        None if the run is not complete."""
        kept = {topic.name: topic for topic in (earlier.topics if earlier else ())}
        for topic in topics:
            copies = [copy for copy in self._copies if copy.wanted.tp.topic == topic.name]
            known = kept.get(topic.name)
            if known is None or known.topic_id == topic.id.hex() or all(copy.is_anew for copy in copies):
                kept[topic.name] = _topic(topic, configs[topic.name], [copy.state() for copy in copies])
        before = {} if earlier is None else dict(earlier.groups)
        manifest = Manifest(
            cluster_id, self._now_ms, groups is not None, tuple(kept[name] for name in sorted(kept)),
            before if groups is None else _merged(before, groups, {topic.name for topic in topics}),
        )  # fmt: skip
        self._target.write_manifest(manifest.dump())
        self._remove_replaced(earlier, manifest)
        return manifest

    def _remove_replaced(self, earlier: Manifest | None, manifest: Manifest) -> None:
        now = {name for topic in manifest.topics for p in topic.partitions for name in _names(p)}
        for topic in earlier.topics if earlier else ():
            for p in topic.partitions:
                self._target.remove([name for name in _names(p) if name not in now])

    def _report(self, earlier: Manifest | None, manifest: Manifest, names: Sequence[str]) -> Taken:
        had = {
            name for topic in (earlier.topics if earlier else ()) for p in topic.partitions for name in _names(p)
        }
        topics = []
        for topic in manifest.topics:
            if topic.name in names:
                new = sum(f.size for p in topic.partitions for f in p.files if f"{p.directory}/{f.name}" not in had)
                topics.append(TakenTopic(topic, new))
        linked = sum(copy.linked_bytes for copy in self._copies)
        warnings = [warning for copy in self._copies for warning in copy.warnings]
        return Taken(manifest, topics, linked, warnings, self._failed)


def _topic(topic: TopicInfo, configs: Sequence[ConfigEntry], copies: Sequence[PartitionBackup]) -> TopicBackup:
    own = {c.name: c.value for c in configs if c.source == ConfigSource.TOPIC and c.value is not None}
    replicas = max((len(p.replicas) for p in topic.partitions), default=0)
    return TopicBackup(topic.name, topic.id.hex(), max(1, replicas), own, tuple(copies))


def _names(partition: PartitionBackup) -> list[str]:
    return [f"{partition.directory}/{file.name}" for file in partition.files]


def _next_run(earlier: Manifest | None) -> int:
    """The number of the next directory for copies that are begun anew."""
    used = [p.directory for topic in (earlier.topics if earlier else ()) for p in topic.partitions]
    return 1 + max((int(name.partition("/")[0].removeprefix("anew-")) for name in used if "/" in name), default=0)


def _tombstones_ms(configs: Sequence[ConfigEntry]) -> int | None:
    """The milliseconds for which a topic keeps tombstones; None if it is not compacted."""
    values = {config.name: config.value or "" for config in configs}
    if "compact" not in values.get("cleanup.policy", ""):
        return None
    return int(values.get("delete.retention.ms") or 0)


def _group_offsets(admin: Admin, topics: Collection[str]) -> dict[str, tuple[GroupOffset, ...]]:
    """The committed offsets of all groups in these topics."""
    found = {}
    for group, offsets in admin.group_offsets([group.id for group in admin.groups()]).items():
        own = [
            GroupOffset(tp.topic, tp.partition, at.offset, at.leader_epoch, at.metadata)
            for tp, at in sorted(offsets.items())
            if tp.topic in topics
        ]
        if own:
            found[group] = tuple(own)
    return found


def _merged(
    before: Mapping[str, tuple[GroupOffset, ...]], now: Mapping[str, tuple[GroupOffset, ...]], topics: Collection[str]
) -> dict[str, tuple[GroupOffset, ...]]:
    """The offsets of now, and those of before in other topics than these."""
    merged = {group: tuple(at for at in offsets if at.topic not in topics) for group, offsets in before.items()}
    for group, offsets in now.items():
        merged[group] = (*merged.get(group, ()), *offsets)
    return {group: offsets for group, offsets in sorted(merged.items()) if offsets}
