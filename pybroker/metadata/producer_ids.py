"""Producer ids: blocks of 1,000, taken from the store with a version check, so that no two producers have the same id.

A store restored from an older copy has lost the latest blocks. Each broker remembers the latest block that it saw, and
its logs hold the ids of producers that wrote to it, whichever broker gave them out. At each registration the broker
raises the store's block above these ids.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator

from pybroker import errors
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Create, NodeExists, NoNode, Session, Set, Stat, StoreError
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes

log = logging.getLogger(__name__)

BLOCK = 1000
ID_MAX = 1 << 62
"""A client may write with any producer id. A higher one in a log was never given out, and is ignored: counting on from
it would leave no ids."""
UNKNOWN_BLOCKS = 1000
"""Blocks to skip after a restored store: other brokers may have taken them, unseen by this broker."""


class ProducerIds:
    """Gives out one broker's producer ids. No block begins at or below an id that this broker knows, even if the store
    was restored from an older copy."""

    def __init__(self, session: Callable[[], Session], broker_id: int, above: Callable[[], int]) -> None:
        """`session` returns the current session; `above` the highest producer id in this broker's logs."""
        self._session = session
        self._broker_id = broker_id
        self._above = above
        self._seen = -1
        """The last id of the latest block that this broker took, or saw in the store."""
        self._block: Iterator[int] = iter(())
        self._taking = asyncio.Lock()

    async def draw(self) -> int:
        """A producer id that was never given out. Raises COORDINATOR_LOAD_IN_PROGRESS if the store fails."""
        drawn = next(self._block, None)
        if drawn is not None:
            return drawn
        async with self._taking:
            while (drawn := next(self._block, None)) is None:
                self._block = await self._take()
        return drawn

    async def block(self) -> tuple[int, int]:
        """The first id and the length of a new block. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        return next(await self._take()), BLOCK

    async def _take(self) -> Iterator[int]:
        try:
            return await self._commit()
        except StoreError as problem:
            # Kafka's code. At COORDINATOR_NOT_AVAILABLE kafka-python's idempotent producer would look for a transaction
            # coordinator, for ever, and each time the broker would close its connection.
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {problem}") from problem

    async def bring_forward(self, *, went_back: bool = False) -> None:
        """Raise the store's block above all ids that this broker knows, if the store was restored from an older copy:
        otherwise ids could be given out again. Skip UNKNOWN_BLOCKS more, which other brokers may have used.
        `went_back`: the store was restored, even if its ids do not show it. Raises StoreError."""
        while True:
            used, stat, known = await self._read()
            if known < 0 and not went_back:
                return
            known = max(known, used) + UNKNOWN_BLOCKS * BLOCK
            cause = f"ids up to {known} may be in use: was the store restored from an older copy?"
            event(log, logging.WARNING, "producer ids skipped", used_before=used, cause=cause)
            last = known // BLOCK * BLOCK + BLOCK - 1
            if await self._write(last + 1 - BLOCK, stat):
                return

    async def _read(self) -> tuple[int, Stat, int]:
        """The last id in use by the store, the node's stat, and the last id that this broker knows above it, or -1."""
        session = self._session()
        while True:
            try:
                data, stat = await read(session, nodes.PRODUCER_IDS)
                break
            except NoNode:  # deleted since the first start
                with contextlib.suppress(NodeExists):
                    await commit(session, [Create(nodes.PRODUCER_IDS)])
        used = nodes.load_block(data) if data else -1
        above = self._above()
        known = max(self._seen, above if above < ID_MAX else -1)
        self._seen = max(self._seen, used)
        return used, stat, known if known > used else -1

    async def _write(self, first: int, stat: Stat) -> bool:
        """Take the block that begins at `first`. False if another broker wrote meanwhile."""
        block = nodes.dump_block(self._broker_id, first, first + BLOCK - 1)
        try:
            await commit(self._session(), [Set(nodes.PRODUCER_IDS, block, stat.version)])
        except BadVersion:
            return False
        self._seen = first + BLOCK - 1
        return True

    async def _commit(self) -> Iterator[int]:
        while True:
            used, stat, known = await self._read()
            first = max(used + 1, -(-(known + 1) // BLOCK) * BLOCK)
            if await self._write(first, stat):
                return itertools.islice(itertools.count(first), BLOCK)
