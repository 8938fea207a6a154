"""Producer ids: blocks of a thousand, taken from the store by version, so that no two producers ever have the same."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

from pybroker import errors
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Session, Set, StoreError
from pybroker.errors import KafkaError

BLOCK = 1000


class ProducerIds:
    """The ids of one broker. `above`: the highest id that its logs hold, which the store may know nothing of."""

    def __init__(self, session: Callable[[], Session], broker_id: int, above: int) -> None:
        """`session` is the present one."""
        self._session = session
        self._broker_id = broker_id
        self._above = above
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

    async def _commit(self) -> Iterator[int]:
        while True:
            session = self._session()
            data, stat = await read(session, nodes.PRODUCER_IDS)
            used = nodes.load_block(data) if data else -1
            first = max(used + 1, -(-(self._above + 1) // BLOCK) * BLOCK)
            block = nodes.dump_block(self._broker_id, first, first + BLOCK - 1)
            try:
                await commit(session, [Set(nodes.PRODUCER_IDS, block, stat.version)])
            except BadVersion:
                continue
            return itertools.islice(itertools.count(first), BLOCK)
