"""What the controller decided and goes by: its own, apart from what brokers were told (cluster/metadata_cache.py)."""

from dataclasses import dataclass, field

from pybroker.cluster.image import LiveBroker
from pybroker.cluster.topics import Topic
from pybroker.controller.election import Fence


@dataclass(slots=True)
class ControllerContext:
    """Of the broker `broker_id` while it is the controller: its right to write, who is alive, and every topic.

    A topic is replaced, never changed, so that others may hold what they were handed."""

    broker_id: int
    fence: Fence
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
