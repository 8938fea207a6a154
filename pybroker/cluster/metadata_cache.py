"""What this broker was told: the metadata cache. One door leads into it, the controller's UpdateMetadata.

    controller ──UpdateMetadata──> update: its epoch is checked, a new image is made, one assignment shows it
    handler ──image──> the whole answer is of that one

A new image shares with the one before all topics, and partitions of a topic, that did not change.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from pybroker import errors
from pybroker.cluster.image import Image, LiveBroker, PartitionState, TopicImage
from pybroker.errors import KafkaError


class TopicStates(NamedTuple):
    """The partitions of a topic of which there is news."""

    name: str
    id: bytes
    partitions: Mapping[int, PartitionState]


class UpdateMetadata(NamedTuple):
    """What a controller tells each broker: the content of Kafka's request of that name.

    `live_brokers` are all that are alive, `topics` only the partitions of which there is news. The topics that are
    `deleted`, whose partitions Kafka sends with the leader -2, go first: one of their names in `topics` is new."""

    controller_id: int
    controller_epoch: int
    live_brokers: Collection[LiveBroker]
    topics: Collection[TopicStates] = ()
    deleted: Collection[str] = ()


class MetadataCache:
    """`image` is what was told last: take it once for each answer."""

    def __init__(self, cluster_id: str = "") -> None:
        self.image = Image(cluster_id)
        self.suspects: set[int] = set()
        """Brokers whose connection ended under those who follow them: until the next word of the controller, or until
        they are reached again, clients are told that their partitions have no leader. One that asks at the moment of a
        death asks again soon then, and not after its whole refresh interval."""
        self.look: Callable[[], object] = lambda: None
        """Has whoever follows others see who hung up, before an answer says who leads."""
        self._watchers: list[Callable[[Image], None]] = []

    def watch(self, watcher: Callable[[Image], None]) -> None:
        """Call it with the image, now and whenever there is another one."""
        self._watchers.append(watcher)
        watcher(self.image)

    def unwatch(self, watcher: Callable[[Image], None]) -> None:
        self._watchers.remove(watcher)

    def update(self, request: UpdateMetadata) -> None:
        """Take what a controller says. Raises STALE_CONTROLLER_EPOCH where a later one has spoken, and KafkaError for
        partitions that leave a gap; then nothing of it is taken."""
        self.image = updated(self.image, request)
        self.suspects.clear()
        for watcher in self._watchers:
            watcher(self.image)


def updated(image: Image, request: UpdateMetadata) -> Image:
    """The image with what the request says; raises as MetadataCache.update."""
    if request.controller_epoch < image.controller_epoch:
        raise KafkaError(
            errors.STALE_CONTROLLER_EPOCH,
            f"broker {request.controller_id} was the controller of epoch {request.controller_epoch}, and that of "
            f"epoch {image.controller_epoch} has spoken",
        )
    put: dict[str, TopicImage] = {}
    for states in request.topics:
        known = put.get(states.name) or image.topic(states.name)
        if known is None or known.id != states.id or states.name in request.deleted:
            known = TopicImage(states.name, states.id, ())
        put[states.name] = _grown(known, states.partitions)
    replaced = [topic for name in (*request.deleted, *put) if (topic := image.topic(name)) is not None]
    ids = {topic.id: name for name, topic in put.items()}
    gone = [topic.id for topic in replaced if topic.id not in ids]
    return replace(
        image,
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        brokers={broker.id: broker for broker in request.live_brokers},
        by_name=image.by_name.changed(put, request.deleted),
        names=image.names.changed(ids, gone),
    )


def _grown(topic: TopicImage, news: Mapping[int, PartitionState]) -> TopicImage:
    """The topic with these partitions, new ones behind those that it has. Raises INVALID_REQUEST for a gap."""
    partitions = list(topic.partitions)
    for index in sorted(news):
        if not 0 <= index <= len(partitions):
            problem = f"partition {index} of {topic.name} is told of, and of {len(partitions)} nothing is known"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        partitions[index : index + 1] = [news[index]]
    return topic._replace(partitions=tuple(partitions))
