"""The metadata cache: this broker's copy of the cluster metadata, from the controller's UpdateMetadata.

    controller ──UpdateMetadata──> update: checks the epoch, makes a new image, publishes it by one assignment
    handler ──image──> answers from one image

A new image shares all unchanged topics and partitions with the one before.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from pybroker import errors
from pybroker.decisions.caller import Disconnect
from pybroker.decisions.image import NO_EPOCH, NO_LEADER, Image, LiveBroker, Node, PartitionState, TopicImage
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition


class TopicStates(NamedTuple):
    """The changed partitions of a topic."""

    name: str
    id: bytes
    partitions: Mapping[int, PartitionState]


class UpdateMetadata(NamedTuple):
    """The content of Kafka's UpdateMetadata, which the controller sends to each broker.

    `live_brokers` are all live brokers, `topics` only the changed partitions. The topics in `deleted`, whose partitions
    Kafka sends with leader -2, are removed first: a topic of the same name in `topics` is a new one."""

    controller_id: int
    controller_epoch: int
    live_brokers: Collection[LiveBroker]
    topics: Collection[TopicStates] = ()
    deleted: Collection[str] = ()


UNTOLD = PartitionState((), NO_LEADER, NO_EPOCH, (), NO_EPOCH, NO_EPOCH)
"""A gap: a partition that no UpdateMetadata has named, while a higher one was. The controller does not send partitions
whose replicas were all dead when the topic was created."""
FULL = 2
"""The UpdateMetadata type of a full update (KIP-866): topics not in it are gone. Kafka's brokers accept it only from
KRaft."""
GAP_MAX = 10_000
"""Partitions in one gap."""
SUSPECTED_S = 1.0
"""Seconds that a broker is suspected after its connection ended. By then a dead broker leads no partition, unless only
its session's end proves its death; and a live one was reached again."""
PATIENCE_S = 0.4
"""Seconds after a suspected broker's connection ended that a request for its partitions waits for the controller."""
LISTED_S = 5.0
"""Seconds that a broker which is gone is still listed to clients."""


class Suspects:
    """Brokers that lost the connection from a follower, for SUSPECTED_S or until they are reached again.

    When a leader dies, clients ask for the new leader at once. If a broker answered that there is none, they would ask
    again only after their timers: 0.5 to 1 s."""

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
        """Suspect a broker until this is called again with False. Used for this broker itself, while other brokers may
        lead its partitions."""
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
        """Seconds that a client asking about partitions led by these brokers waits for the controller; <= 0: no wait.
        """
        return max((PATIENCE_S - self._age_s(broker) for broker in brokers), default=0)

    async def news(self, wait_s: float) -> bool:
        """Wait for a request from the controller, or until a suspect is reached. False after `wait_s` seconds."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await asyncio.wait([news], timeout=wait_s)
        finally:
            self._waiting.discard(news)
        return news.done()

    def look(self) -> None:
        """Wake all waiters to check again, and drop suspicions that are over."""
        for broker in [each for each in self._since_s if each not in self]:
            del self._since_s[broker]
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def _age_s(self, broker: int) -> float:
        since_s = self._since_s.get(broker)
        return SUSPECTED_S if since_s is None else self._now_s() - since_s


class MetadataCache:
    """Keeps the latest `image`: take it once for each response."""

    def __init__(
        self, cluster_id: str = "", now_s: Callable[[], float] = lambda: 0.0, *, grace_s: float = 0.0,
        look: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """`now_s` is monotonic; the default, for use before a start, stands still. `grace_s`: seconds that a Metadata
        response waits before it names leaders. The kernel closes a dying process's connections one by one, so a client
        may ask before this broker's fetchers notice. Then `look` has the fetchers check which leaders disconnected."""
        self.image = Image(cluster_id)
        self.suspects = Suspects(now_s)
        """Clients that ask for a partition led by a suspect wait briefly for the controller; after that the response
        has no leader."""
        self.grace_s, self.look = grace_s, look
        self._now_s = now_s
        self._gone_s: dict[int, tuple[LiveBroker, float]] = {}
        self.expects_topics = False
        self._watchers: list[Callable[[Image], None]] = []

    def listed(self, image: Image, listener: str) -> list[Node]:
        """The brokers to list to clients of a listener: those in the image, and those gone for less than LISTED_S.

        librdkafka (2.16) drops a broker that is no longer listed while it moves that broker's partitions to their new
        leader, and then may not find them for a second. Kafka lists a dead broker until its session ends."""
        now_s = self._now_s()
        self._gone_s = {number: gone for number, gone in self._gone_s.items() if now_s - gone[1] < LISTED_S}
        gone = (broker.node(listener) for number, (broker, _) in self._gone_s.items() if number not in image.brokers)
        return image.nodes(listener) + [node for node in gone if node is not None]

    @property
    def complete(self) -> bool:
        """True once a controller has sent the live brokers and, if the store has topics, these."""
        return self.is_complete(self.image)

    def is_complete(self, image: Image) -> bool:
        return bool(image.brokers) and (len(image) > 0 or not self.expects_topics)

    def with_brokers(self) -> Image:
        """The image, if it has live brokers. Raises Disconnect before a controller has sent any: given an empty list, a
        client would drop the brokers that it knows (librdkafka 2.16: for good)."""
        image = self.image
        if not image.brokers:
            raise Disconnect("this broker has not received the live brokers from the controller yet")
        return image

    def expect_topics(self, expected: bool) -> None:
        """Note whether the store has topics. A new controller sends the live brokers first, and topics only after its
        elections: until then no client must get the answer that a topic is unknown."""
        self.expects_topics = expected

    def check_complete(self) -> None:
        """Raise NOT_CONTROLLER, after which clients retry, until a controller has sent the brokers and topics."""
        if not self.complete:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker has not received the metadata from the controller yet")

    async def told(self, wait_s: float) -> None:
        """Wait until the metadata is complete. Raises TimeoutError."""
        await self.shows(self.is_complete, wait_s)

    async def shows(self, wanted: Callable[[Image], bool], wait_s: float) -> None:
        """Wait for an image for which `wanted` is true. Raises TimeoutError."""
        shown = asyncio.Event()

        def look(image: Image) -> None:
            if wanted(image):
                shown.set()

        self.watch(look)
        try:
            async with asyncio.timeout(wait_s):
                await shown.wait()
        finally:
            self.unwatch(look)

    def watch(self, watcher: Callable[[Image], None]) -> None:
        """Call `watcher` with the image now, and with each new one."""
        self._watchers.append(watcher)
        watcher(self.image)

    def unwatch(self, watcher: Callable[[Image], None]) -> None:
        self._watchers.remove(watcher)

    def update(self, request: UpdateMetadata) -> None:
        """Apply a controller's update. Raises STALE_CONTROLLER_EPOCH if a later controller has sent one, and KafkaError
        for partitions that leave a large gap; then nothing is applied."""
        before = self.image.brokers
        self.image = updated(self.image, request)
        gone = before.keys() - self.image.brokers.keys()
        self._gone_s.update({number: (before[number], self._now_s()) for number in gone})
        self.suspects.look()
        for watcher in self._watchers:
            watcher(self.image)

    def learn(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Apply newer states from a LeaderAndIsr to known partitions, before UpdateMetadata arrives: clients that get
        NOT_LEADER_OR_FOLLOWER from this broker then find the new leader here."""
        news: dict[str, dict[int, PartitionState]] = {}
        for (name, index), state in states.items():
            known = self.image.partition(name, index)
            if known is not None and known.leader_epoch < state.leader_epoch:
                news.setdefault(name, {})[index] = state
        put = {name: _grown(self.image.by_name[name], its) for name, its in news.items()}
        if put:
            self.image = replace(self.image, by_name=self.image.by_name.changed(put, ()))
            self.suspects.look()


def updated(image: Image, request: UpdateMetadata) -> Image:
    """The image after the update; raises as MetadataCache.update."""
    if request.controller_epoch < image.controller_epoch:
        raise KafkaError(
            errors.STALE_CONTROLLER_EPOCH,
            f"broker {request.controller_id} sent controller epoch {request.controller_epoch}, but this broker has "
            f"had requests of epoch {image.controller_epoch}",
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
    """The topic with these partitions changed or added. Raises INVALID_REQUEST for a large gap."""
    partitions = list(topic.partitions)
    for index in sorted(news):
        if not 0 <= index <= len(partitions) + GAP_MAX:
            problem = f"partition {index} of {topic.name} is too far above its known partitions: {len(partitions)}"
            raise KafkaError(errors.INVALID_REQUEST, problem)
        partitions += [UNTOLD] * (index - len(partitions))
        partitions[index : index + 1] = [news[index]]
    return topic._replace(partitions=tuple(partitions))
