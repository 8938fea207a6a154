"""From the controller's context to the brokers: all that they hear of its decisions goes through here.

There is one broker, in this process: it is told by a call, and has what it was told once the call returns.
"""

from collections.abc import Iterable

from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.cluster.topics import Topic
from pybroker.controller.context import ControllerContext


class Channel:
    """The way from one controller to the broker that it runs in."""

    def __init__(self, context: ControllerContext, metadata: MetadataCache, configs: ConfigRepository) -> None:
        self._context = context
        self._metadata = metadata
        self._configs = configs

    def update_metadata(self, topics: Iterable[Topic] = (), deleted: Iterable[str] = ()) -> None:
        """Tell who is alive, these topics as they are, and which ones are gone. Raises STALE_CONTROLLER_EPOCH."""
        context = self._context
        told = [TopicStates(topic.name, topic.id, dict(enumerate(topic.partitions))) for topic in topics]
        live = list(context.brokers.values())
        self._metadata.update(UpdateMetadata(context.broker_id, context.fence.epoch, live, told, list(deleted)))

    def update_configs(self, topics: Iterable[Topic] = (), deleted: Iterable[str] = ()) -> None:
        """Tell the settings of these topics, and of which ones there are none any more."""
        for topic in topics:
            self._configs.put(topic.name, topic.config)
        for name in deleted:
            self._configs.remove(name)
