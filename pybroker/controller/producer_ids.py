"""Producer ids: blocks of a thousand, taken from the store by version, so that no two producers ever have the same.

A store that was restored from an older copy has forgotten the latest blocks. Each broker remembers the latest block
that it saw, and its logs hold the ids of producers that wrote, other brokers' producers too. At each registration it
raises the store's block above these.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator

from pybroker import errors
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Create, NodeExists, NoNode, Session, Set, Stat, StoreError
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)

BLOCK = 1000
ID_MAX = 1 << 62
"""A client may write under any id. A higher one in a log was never given out, and is ignored: counting on from it would
leave no ids."""
UNKNOWN_BLOCKS = 1000
"""Blocks to skip, because other brokers may have taken them, the store has forgotten them, and this broker has not seen
them."""


class ProducerIds:
    """The ids of one broker. No block begins at or below an id that this broker knows, even if the store went back in
    time."""

    def __init__(self, session: Callable[[], Session], broker_id: int, above: Callable[[], int]) -> None:
        """`session` returns the present session; `above` the highest id that the logs here hold, of producers of any
        broker."""
        self._session = session
        self._broker_id = broker_id
        self._above = above
        self._seen = -1
        """The last id of the latest block that this broker took, or saw in the store."""
        self._block: Iterator[int] = iter(())
        self._taking = asyncio.Lock()

    async def draw(self) -> int:
        """An id that no producer has had. Raises COORDINATOR_LOAD_IN_PROGRESS where the store fails."""
        drawn = next(self._block, None)
        if drawn is not None:
            return drawn
        async with self._taking:
            while (drawn := next(self._block, None)) is None:
                self._block = await self._take()
        return drawn

    async def block(self) -> tuple[int, int]:
        """A block that nobody has drawn from: its first id, and how many. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        return next(await self._take()), BLOCK

    async def _take(self) -> Iterator[int]:
        try:
            return await self._commit()
        except StoreError as problem:
            # Kafka's code. At COORDINATOR_NOT_AVAILABLE kafka-python looks for the coordinator of a transaction that
            # an idempotent producer does not have, and is closed for what it asks, for ever.
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids: {problem}") from problem

    async def bring_forward(self, *, went_back: bool = False) -> None:
        """Raise the store's block above all ids that this broker knows, if the store went back: another broker could
        give them out again. Skips UNKNOWN_BLOCKS more, which brokers that are not back yet may have used. `went_back`:
        the store did, even if its ids do not show it. Raises StoreError."""
        while True:
            used, stat, known = await self._read()
            if known < 0 and not went_back:
                return
            known = max(known, used) + UNKNOWN_BLOCKS * BLOCK
            cause = f"ids up to {known} may be in use: the store was restored from an older copy?"
            event(log, logging.WARNING, "producer ids brought forward", used_before=used, cause=cause)
            last = known // BLOCK * BLOCK + BLOCK - 1
            if await self._write(last + 1 - BLOCK, stat):
                return

    async def _read(self) -> tuple[int, Stat, int]:
        """The last id in use that the store knows, the node's stat, and the last one that only this broker knows (-1:
        none)."""
        session = self._session()
        while True:
            try:
                data, stat = await read(session, nodes.PRODUCER_IDS)
                break
            except NoNode:  # there is one since the first start
                with contextlib.suppress(NodeExists):
                    await commit(session, [Create(nodes.PRODUCER_IDS)])
        used = nodes.load_block(data) if data else -1
        above = self._above()
        known = max(self._seen, above if above < ID_MAX else -1)
        self._seen = max(self._seen, used)
        return used, stat, known if known > used else -1

    async def _write(self, first: int, stat: Stat) -> bool:
        """Take the block that begins at `first`; False if another broker wrote meanwhile."""
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
