"""What this broker was told: the metadata cache. One door leads into it, the controller's UpdateMetadata.

    controller ──UpdateMetadata──> update: its epoch is checked, a new image is made, one assignment shows it
    handler ──image──> the whole answer is of that one

A new image shares with the one before all topics, and partitions of a topic, that did not change.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from pybroker import errors
from pybroker.cluster.caller import Disconnect
from pybroker.cluster.image import NO_EPOCH, NO_LEADER, Image, LiveBroker, Node, PartitionState, TopicImage
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition


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


UNTOLD = PartitionState((), NO_LEADER, NO_EPOCH, (), NO_EPOCH, NO_EPOCH)
"""A partition of which only later ones were told: a controller tells nothing of one whose replicas were all dead when
its topic was made."""
FULL = 2
"""As the type of an UpdateMetadata (KIP-866): what it does not name is gone. Kafka's brokers heed it of KRaft alone."""
GAP_MAX = 10_000
"""So many of those one topic may have at once."""
SUSPECTED_S = 1.0
"""How long a broker whose connection ended is suspected. One that is dead leads nothing any more by then, unless its
death is not proven and its session has to end; and one that is not dead was reached again."""
PATIENCE_S = 0.4
"""How long after that a question for a leader waits for the controller's word."""
LISTED_S = 5.0
"""How long clients are told of a broker that is gone."""


class Suspects:
    """Brokers whose connection ended under those who follow them, for a while, or until they are reached again.

    At the moment of a death clients ask who leads now. Whoever told them that nobody does would be asked again after
    their timers: half a second or a whole one."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s: dict[int, float] = {}
        self._replaced: set[int] = set()
        self._waiting: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._since_s or self._replaced)

    def __contains__(self, broker: int) -> bool:
        return broker in self._replaced or self._age_s(broker) < SUSPECTED_S

    def doubt(self, broker: int, doubted: bool) -> None:
        """Suspect a broker until this is called again with False: this broker, while others may lead what it led."""
        if doubted and broker not in self._replaced:
            self._replaced.add(broker)
            self._since_s[broker] = self._now_s()
        elif not doubted and broker in self._replaced:
            self._replaced.discard(broker)
            self.discard(broker)

    def is_doubted(self, broker: int) -> bool:
        return broker in self._replaced

    def add(self, broker: int) -> None:
        if broker not in self:
            self._since_s[broker] = self._now_s()

    def discard(self, broker: int) -> None:
        """Stop suspecting a broker, because it was reached."""
        if self._since_s.pop(broker, None) is not None:
            self.look()

    def patience_s(self, brokers: Collection[int]) -> float:
        """How long who asks for what these lead waits for the controller's word; 0 or less: no longer."""
        return max((PATIENCE_S - self._age_s(broker) for broker in brokers), default=0)

    async def news(self, wait_s: float) -> bool:
        """Return when the controller spoke, or a broker was reached; False when the time is over."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await asyncio.wait([news], timeout=wait_s)
        finally:
            self._waiting.discard(news)
        return news.done()

    def look(self) -> None:
        """Something was told: who waits looks again."""
        for broker in [each for each in self._since_s if each not in self]:
            del self._since_s[broker]
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def _age_s(self, broker: int) -> float:
        since_s = self._since_s.get(broker)
        return SUSPECTED_S if since_s is None else self._now_s() - since_s


class MetadataCache:
    """`image` is what was told last: take it once for each answer."""

    def __init__(self, cluster_id: str = "", now_s: Callable[[], float] = lambda: 0.0) -> None:
        """`now_s` is monotonic; where nobody follows others no time passes."""
        self.image = Image(cluster_id)
        self.suspects = Suspects(now_s)
        """Clients that ask for a partition which one of these leads wait a moment for the controller's word; then they
        are told that it has no leader."""
        self.grace_s = 0.0
        """How long an answer waits before it says who leads. The kernel closes the connections of a process that dies
        one after the other: a client may ask before those who follow can know."""
        self.look: Callable[[], object] = lambda: None
        """Has whoever follows others see who hung up, before an answer says who leads."""
        self._now_s = now_s
        self._gone_s: dict[int, tuple[LiveBroker, float]] = {}
        self.expects_topics = False
        """Does the store know of topics, of which no controller has told this broker yet? A new controller tells who is
        alive first, and who leads once that is settled: nobody is to hear meanwhile that there is no such topic."""
        self._watchers: list[Callable[[Image], None]] = []

    def listed(self, image: Image, listener: str) -> list[Node]:
        """The brokers that clients of a listener are told of: those alive in an image, and those just gone.

        librdkafka (2.16) drops a broker that is not listed any more while it moves that broker's partitions to their
        new leader, and then may not find them for a second. Kafka lists a dead broker until its session ends."""
        now_s = self._now_s()
        self._gone_s = {number: gone for number, gone in self._gone_s.items() if now_s - gone[1] < LISTED_S}
        gone = (broker.node(listener) for number, (broker, _) in self._gone_s.items() if number not in image.brokers)
        return image.nodes(listener) + [node for node in gone if node is not None]

    @property
    def complete(self) -> bool:
        """Has a controller told who is alive, and of topics if there are any?"""
        return self.is_complete(self.image)

    def is_complete(self, image: Image) -> bool:
        return bool(image.brokers) and (len(image) > 0 or not self.expects_topics)

    def with_brokers(self) -> Image:
        """The image that clients are told of brokers from. Raises Disconnect where no controller has told yet who is
        alive: who heard of no brokers would drop those that it knows; librdkafka 2.16, every one of them for good."""
        image = self.image
        if not image.brokers:
            raise Disconnect("no controller has told this broker yet which brokers there are")
        return image

    def check_complete(self) -> None:
        """Raise NOT_CONTROLLER, after which clients ask again, where what was told does not say yet which brokers and
        topics there are."""
        if not self.complete:
            raise KafkaError(errors.NOT_CONTROLLER, "no controller has told this broker yet what there is")

    async def told(self, wait_s: float) -> None:
        """Wait until it is complete. Raises TimeoutError."""
        told = asyncio.Event()

        def look(_: Image) -> None:
            if self.complete:
                told.set()

        self.watch(look)
        try:
            async with asyncio.timeout(wait_s):
                await told.wait()
        finally:
            self.unwatch(look)

    def watch(self, watcher: Callable[[Image], None]) -> None:
        """Call it with the image, now and whenever there is another one."""
        self._watchers.append(watcher)
        watcher(self.image)

    def unwatch(self, watcher: Callable[[Image], None]) -> None:
        self._watchers.remove(watcher)

    def update(self, request: UpdateMetadata) -> None:
        """Take what a controller says. Raises STALE_CONTROLLER_EPOCH where a later one has spoken, and KafkaError for
        partitions that leave a large gap; then nothing of it is taken."""
        before = self.image.brokers
        self.image = updated(self.image, request)
        gone = before.keys() - self.image.brokers.keys()
        self._gone_s.update({number: (before[number], self._now_s()) for number in gone})
        self.suspects.look()
        for watcher in self._watchers:
            watcher(self.image)

    def learn(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Take what a LeaderAndIsr says of partitions that are known, where it is newer: whoever is told that this
        broker leads one no more finds here who does, before UpdateMetadata has come."""
        put: dict[str, TopicImage] = {}
        for key, state in states.items():
            known = self.image.partition(*key)
            topic = put.get(key.topic) or self.image.topic(key.topic)
            if known is not None and topic is not None and known.leader_epoch < state.leader_epoch:
                put[key.topic] = _grown(topic, {key.partition: state})
        if put:
            self.image = replace(self.image, by_name=self.image.by_name.changed(put, ()))
            self.suspects.look()


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
    """The topic with these partitions, new ones behind those that it has. Raises INVALID_REQUEST for a large gap."""
    partitions = list(topic.partitions)
    for index in sorted(news):
        if not 0 <= index <= len(partitions) + GAP_MAX:
            problem = f"partition {index} of {topic.name} is told of, and of {len(partitions)} nothing is known"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        partitions += [UNTOLD] * (index - len(partitions))
        partitions[index : index + 1] = [news[index]]
    return topic._replace(partitions=tuple(partitions))
