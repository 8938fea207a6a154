"""A broker's registration: its ephemeral node under /brokers/ids, and the controller that hears of it.

The transaction that made the node is the broker's epoch. Nobody watches the nodes yet: there is one broker, which is
the controller, and tells itself.
"""

from collections.abc import Callable

from pybroker.cluster.image import LiveBroker
from pybroker.controller import nodes
from pybroker.controller.channel import Channel
from pybroker.controller.context import ControllerContext
from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import Create, Session, Set


class Registration:
    """Of the broker that `current` describes, as its settings are."""

    def __init__(
        self,
        session: Session,
        context: ControllerContext,
        channel: Channel,
        current: Callable[[], LiveBroker],
        wall_ms: Callable[[], int],
    ) -> None:
        self._session = session
        self._context = context
        self._channel = channel
        self._current = current
        self._wall_ms = wall_ms

    async def register(self) -> int:
        """Show the broker to the cluster; its epoch. Raises NodeExists where another one has its id."""
        broker = self._current()
        path, data = nodes.broker(broker.id), nodes.dump_broker(broker, self._wall_ms())
        await commit(self._session, [Create(path, data, ephemeral=True)])
        _, stat = await until_answered(lambda: self._session.get(path))
        self._tell(broker)
        return stat.czxid

    async def renew(self) -> None:
        """Show it as it is now, if that is not how it is known. Raises StoreError."""
        broker = self._current()
        if broker != self._context.brokers[broker.id]:
            data = nodes.dump_broker(broker, self._wall_ms())
            await commit(self._session, [Set(nodes.broker(broker.id), data)])
            self._tell(broker)

    def _tell(self, broker: LiveBroker) -> None:
        self._context.brokers[broker.id] = broker
        self._channel.update_metadata()
