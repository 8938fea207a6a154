"""A look-up by timestamp finds the first record that is not older, in compressed batches and behind a log start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.model import CODECS
from pybroker.protocol.compression import compress
from pybroker.replication.search import NOTHING, FoundRecord, by_time, latest_time

END = 1 << 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[core.Partition]:
    broker = core.LogManager()
    made = broker.open(str(tmp_path), "t", 0, topic_id=b"\1" * 16, config={})
    made.become_leader(3, 0)
    yield made
    broker.close(clean=False)


def append(log: core.Partition, *times: int, codec: str = "none", stamped: int | None = None) -> None:
    """Append one batch with records at these times; `stamped` is LogAppendTime."""
    attributes = CODECS.index(codec)
    records = [(time, None, b"v", ()) for time in times]
    if attributes:
        how = {"attributes": attributes, "compress": lambda data: compress(attributes, data)}
        log.append(core.build_batch(records, **how), now_ms=1)
        return
    if stamped is not None:
        log.configure({"message.timestamp.type": 1})
    log.append(core.build_batch(records), now_ms=stamped or 1)


@pytest.mark.parametrize("codec", CODECS)
def test_the_first_record_that_is_not_older(log: core.Partition, codec: str) -> None:
    """A look-up finds a record, not its batch, though times in a batch need not grow."""
    append(log, 10, 30, 20, codec=codec)
    append(log, 25, 40, codec=codec)
    for time, found in ((0, (0, 10)), (10, (0, 10)), (11, (1, 30)), (30, (1, 30)), (31, (4, 40))):
        assert by_time(log, time, END) == FoundRecord(*found, 3)
    assert by_time(log, 41, END) is NOTHING
    assert latest_time(log) == FoundRecord(4, 40, 3)


def test_an_empty_log_has_no_times(log: core.Partition) -> None:
    assert by_time(log, 0, END) is NOTHING and latest_time(log) is NOTHING


def test_nothing_is_found_at_the_bound_or_behind_it(log: core.Partition) -> None:
    append(log, 10, 20)
    append(log, 30)
    assert by_time(log, 15, 2) == FoundRecord(1, 20, 3)
    assert by_time(log, 15, 1) is NOTHING and by_time(log, 25, 2) is NOTHING and by_time(log, 0, 0) is NOTHING


def test_what_was_deleted_is_not_found(log: core.Partition) -> None:
    """A record below the log start is not found, even if its batch is still there."""
    append(log, 50, 10)
    append(log, 40)
    log.set_log_start(1)
    assert by_time(log, 20, END) == FoundRecord(2, 40, 3)
    assert by_time(log, 5, END) == FoundRecord(1, 10, 3)
    assert by_time(log, 45, END) is NOTHING


def test_the_first_of_the_largest_times(log: core.Partition) -> None:
    append(log, 10, 30, 30)
    append(log, 30)
    assert latest_time(log) == FoundRecord(1, 30, 3)


def test_batches_have_the_time_of_their_append_where_they_are_stamped(log: core.Partition) -> None:
    append(log, 10, 20, stamped=1000)
    assert by_time(log, 500, END) == FoundRecord(0, 1000, 3) == latest_time(log)
    assert by_time(log, 1001, END) is NOTHING
