"""The continuation of a copy: by the leader epoch and the CRC of its last batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pybroker.backup.batches import WholeBatches, checked
from pybroker.backup.fetching import PartitionReader
from pybroker.backup.local_logs import LocalLogs
from pybroker.backup.partition_copy import CopyOptions, CopyRequest, Discontinued, PartitionCopy
from pybroker.backup.targets import open_target
from pybroker.model import TopicPartition
from tests.backup import kit
from tests.backup.kit import batch
from tests.rows import with_each

LOG = [batch(0, b"a", b"b"), batch(2, b"c", epoch=5)]
ID = bytes(16)


class Leader:
    """A leader whose log has these batches from the last one of the backup on, and this end of leader epoch 5."""

    def __init__(self, epoch_end: tuple[int, int], *log: bytes) -> None:
        self._epoch_end = epoch_end
        self._log = log

    def epoch_end(self, _: int) -> tuple[int, int]:
        return self._epoch_end

    def pieces(self, *_: int) -> Iterator[WholeBatches]:
        if self._log:
            yield checked(memoryview(b"".join(self._log)), "the leader's log")


def copy(home: Path, *, start: int = 0, tombstones_ms: int | None = None) -> PartitionCopy:
    """The copy of a log that goes on behind LOG, which is backed up."""
    earlier = kit.partition(home, "orders", 0, LOG)
    request = CopyRequest(
        TopicPartition("orders", 0), ID, start, 10, earlier.taken_ms + 5, earlier, ID.hex(), tombstones_ms,
        "anew-1/orders-0",
    )  # fmt: skip
    target = open_target(str(home), write=False)
    return PartitionCopy(request, target, LocalLogs({}), CopyOptions(), lambda *_: None, lambda: False)


@with_each(
    "leader, why",
    [
        (Leader((5, 3), LOG[1]), ""),
        (Leader((5, 9), LOG[1], batch(3, b"d", epoch=5)), ""),
        (Leader((-1, -1), LOG[1]), ""),  # a broker that knows no epochs
        (Leader((5, 2), batch(2, b"x", epoch=6)), "leader epoch 5 has no record there"),
        (Leader((3, 2), batch(2, b"c", epoch=6)), "leader epoch 5 has no record there"),
        (Leader((5, 3), batch(2, b"x", epoch=5)), "has CRC"),
        (Leader((-1, -1), batch(3, b"c", epoch=5)), "has CRC"),
        (Leader((5, 9)), "no batch there"),
    ],
    ids=lambda value: value if isinstance(value, str) else "leader",
)
def test_a_log_that_goes_on_and_others(tmp_path_factory: pytest.TempPathFactory, leader: Leader, why: str) -> None:
    """A log is continued if it has the last batch, in the epoch that it had."""
    found = copy(tmp_path_factory.mktemp("backup"))
    if not why:
        found._check_continues(cast(PartitionReader, leader))
        return
    with pytest.raises(Discontinued, match=why):
        found._check_continues(cast(PartitionReader, leader))


def test_a_last_batch_that_is_gone(tmp_path: Path) -> None:
    """The epoch of the last batch decides alone if retention or compaction may have taken it."""
    gone, diverged = Leader((5, 3), batch(9, b"z", epoch=6)), Leader((5, 1), batch(9, b"z", epoch=6))
    for found in (copy(tmp_path, start=4), copy(tmp_path, tombstones_ms=1000)):
        found._check_continues(cast(PartitionReader, gone))
        with pytest.raises(Discontinued):
            found._check_continues(cast(PartitionReader, diverged))


def test_another_topic(tmp_path: Path) -> None:
    """A topic of another id, and a log that ends before the backup, are not continued, whatever is in them."""
    found = copy(tmp_path)
    for wrong, why in (({"topic_id": bytes([1] * 16)}, "created again"), ({"end": 2}, "ends at 2, the backup at 3")):
        found.wanted = copy(tmp_path).wanted._replace(**wrong)  # type: ignore[arg-type]
        with pytest.raises(Discontinued, match=why):
            found._check_continues(cast(PartitionReader, Leader((5, 3), LOG[1])))
    assert replace(found.state(), taken_ms=0).end_offset == 3
