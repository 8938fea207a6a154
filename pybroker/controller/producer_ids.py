"""Producer ids: blocks of a thousand, taken from the store by version, so that no two producers ever have the same.

A store that was restored from an older copy knows of fewer. Each broker remembers the latest block that it saw, and its
logs have the ids of producers that wrote, its own and others'; at each registration it has the store know of them.
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
"""A client may write under any id: a higher one in a log was never given out, and would leave none to give."""
UNKNOWN_BLOCKS = 1000
"""How many blocks others may have taken that a store has forgotten, and this broker has not seen."""


class ProducerIds:
    """The ids of one broker. The store may have gone back in time: no block begins at or below an id that this broker
    knows."""

    def __init__(self, session: Callable[[], Session], broker_id: int, above: Callable[[], int]) -> None:
        """`session` is the present one; `above` gives the highest id that the logs here hold now, of whichever broker's
        producers."""
        self._session = session
        self._broker_id = broker_id
        self._above = above
        self._seen = -1
        """The last id of the latest block that was taken here, or seen in the store."""
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
        """Have the store know of all ids that this broker knows of, after it went back: another broker could give them
        out again. Those are passed by, too, that only brokers know which are not back yet. `went_back`: the store did,
        though its ids do not show it. Raises StoreError."""
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
        """The last id that the store knows to be in use, its node, and the last one that is known here alone."""
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
        """Take the block that begins at `first`; False where another broker wrote meanwhile."""
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
