"""Offsets of transactions: after any history the state in memory is that of a replay of the log."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.groups.loading import load
from pybroker.groups.shard import GroupEntry
from pybroker.protocol import messages as m
from tests.groups.logs import T0, T1, U0, Bench, at
from tests.virtual import Inline, run

KEYS = [T0, T1, U0]
PRODUCERS = 3
G = "g"


async def in_transaction(bench: Bench, producer: int, key: int, offset: int) -> None:
    async def verify(log: Any) -> int:
        return await log.verify(producer, 0, 0)  # type: ignore[no-any-return]

    answers = await bench.groups.offsets.commit_in_transaction(
        G, "", None, -1, {KEYS[key]: at(offset, 1)}, (producer, 0), verify
    )
    assert answers == {KEYS[key]: errors.NONE}


async def plain(bench: Bench, producer: int, key: int, offset: int) -> None:
    assert await bench.groups.offsets.commit(G, "", None, -1, {KEYS[key]: at(offset, 1)}) == {KEYS[key]: errors.NONE}


async def end(bench: Bench, producer: int, key: int, offset: int) -> None:
    marker = m.WriteTxnMarkersRequest.Markers(
        producer_id=producer, producer_epoch=0, transaction_result=bool(offset % 2), coordinator_epoch=0
    )
    shard = bench.groups.shard_of(G)
    assert await bench.groups.write_marker(shard.index, marker) == errors.NONE


async def forget(bench: Bench, producer: int, key: int, offset: int) -> None:
    assert await bench.groups.offsets.forget(G, [KEYS[key]]) == errors.NONE


async def delete(bench: Bench, producer: int, key: int, offset: int) -> None:
    entry = bench.groups.find(G)
    code = await bench.groups.offsets.delete(G)
    if entry is not None and entry.unstable:
        assert code == errors.NON_EMPTY_GROUP, "the offsets of an open transaction would be lost"


async def expire(bench: Bench, producer: int, key: int, offset: int) -> None:
    await bench.groups.expire(1 << 60)


def shown(entry: GroupEntry | None) -> object:
    """The offsets of a group that clients see, and those of its open transactions. A group without any may stay in
    memory until the next look for expired ones."""
    if entry is None or not (entry.offsets or entry.in_transaction):
        return None
    pending = {
        producer: {key: each.committed for key, each in offsets.items()}
        for producer, offsets in entry.in_transaction.items()
    }
    return dict(entry.offsets), pending


STEP = st.tuples(
    st.sampled_from([in_transaction, in_transaction, plain, end, end, forget, delete, expire]),
    st.integers(0, PRODUCERS - 1), st.integers(0, len(KEYS) - 1), st.integers(0, 9),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_any_history_is_what_the_log_says(history: list[Any]) -> None:
    """Fault 42: plain commits in between, deletion, expiry and the ends of several transactions leave the same state
    in memory as a next coordinator reads."""

    async def story(directory: Path) -> None:
        bench = Bench(directory, Inline())
        await bench.lead(bench.groups)
        log = bench.logs[bench.groups.shard_of(G).index]
        for step, *arguments in history:
            await step(bench, *arguments)
            await asyncio.sleep(0)
            assert shown(bench.groups.find(G)) == shown(load(log, 1 << 20).entries.get(G))
        bench.groups.resign_all()
        bench.close()

    with tempfile.TemporaryDirectory() as directory:
        run(story(Path(directory)))
