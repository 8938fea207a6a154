"""Log dirs of brokers on this machine: their sealed segments are linked or copied without going through the broker.

A log dir is a broker's if its meta.properties name the cluster and the broker; so a path that another machine reported
is never taken for one of this machine.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import META, PARTITION_METADATA, Malformed, read_meta, read_topic_id


class SealedSegment(NamedTuple):
    """A segment that is followed by another one, whose base offset is `next_base`."""

    base: int
    next_base: int
    path: Path


class LocalLogs:
    """The readable log dirs of this cluster's brokers on this machine, by broker."""

    def __init__(self, log_dirs: dict[int, list[Path]]) -> None:
        self._log_dirs = log_dirs

    def sealed(self, broker: int, tp: TopicPartition, topic_id: bytes) -> list[SealedSegment]:
        """The sealed segments of a partition that this broker leads, ascending; none if its log is not here."""
        for log_dir in self._log_dirs.get(broker, ()):
            directory = log_dir / str(tp)
            with contextlib.suppress(OSError, Malformed):
                if read_topic_id((directory / PARTITION_METADATA).read_text()) == topic_id:
                    return list(_sealed(directory))
        return []


def _sealed(directory: Path) -> Iterator[SealedSegment]:
    bases = sorted(int(path.stem) for path in directory.glob("*.log") if path.stem.isdecimal())
    for base, following in itertools.pairwise(bases):
        yield SealedSegment(base, following, directory / f"{base:020}.log")


def given(paths: Sequence[Path], cluster_id: str) -> LocalLogs:
    """The log dirs that a person named. ValueError if one is no log dir of this cluster."""
    found: dict[int, list[Path]] = {}
    for path in paths:
        broker = _broker_of(path, cluster_id)
        if broker is None:
            raise ValueError(f"{path} is no log dir of a broker of this cluster: its {META} does not say so")
        found.setdefault(broker, []).append(path)
    return LocalLogs(found)


def discovered(admin: Admin, cluster_id: str, brokers: Sequence[int]) -> LocalLogs:
    """The log dirs that brokers report, as far as they are on this machine and may be read."""
    found: dict[int, list[Path]] = {}
    for broker in brokers:
        with contextlib.suppress(KafkaError):  # it does not answer, or an ACL is missing
            for log_dir in admin.log_dirs([broker], []):
                path = Path(log_dir.path)
                if path.is_absolute() and _broker_of(path, cluster_id) == broker:
                    found.setdefault(broker, []).append(path)
    return LocalLogs(found)


def _broker_of(path: Path, cluster_id: str) -> int | None:
    """The broker whose log dir this is; None if it is none of this cluster, or may not be read."""
    try:
        meta = read_meta((path / META).read_text())
    except (OSError, ValueError):
        return None
    return meta.broker_id if meta.cluster_id == cluster_id else None
