"""DescribeLogDirs: where partitions are, their sizes, and the free space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.server.live import Live, Wire, batch


def found(answer: Any) -> dict[tuple[str, int], int]:
    """{(topic, partition): bytes} over all log dirs."""
    return {
        (t.name, p.partition_index): p.partition_size for r in answer.results for t in r.topics for p in t.partitions
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_sizes_are_those_of_the_files(live: Live, wire: Wire, version: int) -> None:
    await wire.create("t", 2)
    sent = batch(b"x" * 1000)
    for _ in range(3):
        await wire.produce("t", sent, partition=1)
    answer = await wire.call("DescribeLogDirs", version, topics=None)
    [result] = answer.results
    assert (answer.error_code, result.error_code) == (0, 0)
    assert result.log_dir == str(live.data_dir) and os.path.isabs(result.log_dir)
    assert found(answer) == {("t", 0): 0, ("t", 1): 3 * len(sent)}
    lag = {(p.offset_lag, p.is_future_key) for t in result.topics for p in t.partitions}
    assert lag == {(0, False)}
    if version >= 4:
        disk = os.statvfs(live.data_dir)
        assert result.total_bytes == disk.f_blocks * disk.f_frsize
        assert 0 < result.usable_bytes <= result.total_bytes


async def test_only_what_is_asked_for_and_known(wire: Wire) -> None:
    """Unknown topics and partitions are left out; each log dir is always in the answer."""
    await wire.create("t", 2)
    await wire.create("u")
    kind = m.DescribeLogDirsRequest.Topics
    asked = [kind(topic="t", partitions=[1, 9]), kind(topic="none", partitions=[0])]
    assert found(await wire.call("DescribeLogDirs", 4, topics=asked)) == {("t", 1): 0}
    for nothing in ([], asked[1:]):
        [result] = (await wire.call("DescribeLogDirs", 4, topics=nothing)).results
        assert (result.error_code, result.topics) == (0, [])


async def test_a_log_dir_that_cannot_be_used_is_shown_as_such(tmp_path: Path) -> None:
    """A file in place of the second log dir gets an error, and the first log dir is described."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    bad.write_text("")
    live = Live(tmp_path, [f"log.dirs={good},{bad}"])
    await live.start()
    try:
        wire = await live.connect()
        await wire.create("t")
        answer = await wire.call("DescribeLogDirs", 4, topics=None)
        assert {r.log_dir: r.error_code for r in answer.results} == {
            str(good): 0, str(bad): errors.KAFKA_STORAGE_ERROR
        }  # fmt: skip
        assert found(answer) == {("t", 0): 0}
    finally:
        await live.stop()
