"""Settles at a start the moves between log dirs that were under way (see `moves.py`): one log is left, the right one.

    the log, and a copy in another log dir     The copy is deleted, and the move begun again.
    the log in two log dirs, one marked        The switch was cut short: the marked one is the log, the other deleted.
    no log, all log dirs usable, marked copy   The switch was cut short by a loss of power: the copy is the log.
    no log, and another copy                   Nothing. The replica is offline, or in a cluster it is created again.

A copy has the mark once it is complete and on disk; Kafka does not know it, and passes over it.
"""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.directory_names import FUTURE, MARK, aside
from pybroker.replication.disks.logdirs import LogDir, remove

log = logging.getLogger(__name__)



class _Found(NamedTuple):
    log_dir: LogDir
    path: str

    @property
    def is_marked(self) -> bool:
        return os.path.exists(os.path.join(self.path, MARK))


def settle(log_dirs: Sequence[LogDir], usable: Sequence[LogDir]) -> dict[TopicPartition, LogDir]:
    """Leave one log of each replica that was being moved. Return the replicas whose moves are to be begun again, with
    the log dirs that they move to. Raises OSError."""
    logs: dict[TopicPartition, list[_Found]] = {}
    copies: dict[TopicPartition, list[_Found]] = {}
    for log_dir in usable:
        for key in log_dir.named():
            logs.setdefault(key, []).append(_Found(log_dir, os.path.join(log_dir.path, str(key))))
        for name in map(os.path.basename, log_dir.set_aside()):
            if match := FUTURE.fullmatch(name):
                key = TopicPartition(match["topic"], int(match["partition"]))
                copies.setdefault(key, []).append(_Found(log_dir, os.path.join(log_dir.path, name)))
    is_whole = len(usable) == len(log_dirs)
    for key, found in logs.items():
        _choose(key, found, is_whole)
    again = {}
    for key, some in copies.items():
        if key not in logs:
            _finish(key, [copy for copy in some if copy.is_marked], is_whole)
            continue
        for copy in some:
            if _topic_id(copy) in (None, _topic_id(logs[key][0])):
                again[key] = copy.log_dir
                _delete(copy, key)
    return again


def _choose(key: TopicPartition, found: list[_Found], is_whole: bool) -> None:
    """Delete the directory that a replica has left. Without a mark, or with two, a person has to choose."""
    marked = [each for each in found if each.is_marked]
    if len(found) > 1 and len(marked) == 1:
        for each in found:
            if each is not marked[0]:
                event(log, logging.WARNING, "switch between log dirs finished", partition=key, left=each.path)
                _delete(each, key)
        found[:] = marked
    if len(found) == 1 and marked and is_whole:  # else the other directory may come back with its log dir
        os.unlink(os.path.join(found[0].path, MARK))


def _finish(key: TopicPartition, marked: list[_Found], is_whole: bool) -> None:
    """Give a complete copy the name of its log, which is in no log dir."""
    if len(marked) != 1 or not is_whole:
        return
    [copy] = marked
    event(log, logging.WARNING, "switch between log dirs finished", partition=key, directory=copy.path)
    os.rename(copy.path, os.path.join(copy.log_dir.path, str(key)))
    copy.log_dir.sync()
    os.unlink(os.path.join(copy.log_dir.path, str(key), MARK))


def _delete(found: _Found, key: TopicPartition) -> None:
    left = os.path.join(found.log_dir.path, aside(key, "delete"))
    os.rename(found.path, left)
    found.log_dir.sync()
    remove(left)


def _topic_id(found: _Found) -> bytes | None:
    try:
        with open(os.path.join(found.path, checkpoints.PARTITION_METADATA), encoding="utf-8") as file:
            return checkpoints.read_topic_id(file.read())
    except (OSError, UnicodeDecodeError, checkpoints.Malformed):
        return None
