"""The handlers of a broker without sockets, and the services they depend on: a store in memory, a controller, and
replicas whose logs lie in the test's directory."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from pybroker.config import BrokerConfig
from pybroker.core import Slice
from pybroker.decisions.caller import Call, Caller
from pybroker.decisions.image import LiveBroker
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata.planning import NewTopic
from pybroker.model import PLAINTEXT
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import KNOWN
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.workers import Workers
from pybroker.server.api.handlers.control import Control
from pybroker.server.api.table import Collaborators, fetch_of, handlers
from pybroker.server.cluster.loopback import Loopback
from tests.controller.stage import Stage

KEYS = {api.name: api.key for api in KNOWN.values()}
CALLER = Caller("somewhere", 1, PLAINTEXT)
HERE, ELSEWHERE = 1, 2


class DiskStage(Stage):
    """A stage whose broker 1 has its replicas on disk."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(brokers=2)
        self._desk = desk

    def groups(self) -> Coordinator:
        self.coordinator = Coordinator(self.config, self._desk.workers)
        return self.coordinator

    async def connect_to(self, broker: LiveBroker) -> Any:
        if broker.id != HERE:
            return await super().connect_to(broker)
        return Loopback(Control(self.control.peers), PLAINTEXT)


class Desk:
    """Broker 1, which is the controller; broker 2 is alive and holds the replicas that a test assigns to it."""

    def __init__(self, path: Path, *sets: str) -> None:
        self.stage = DiskStage(self)
        self.stage.config = BrokerConfig.load(
            None, ["offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0", *sets]
        )
        self.log_dir_path = path
        self.log_dir = LogDir(str(path))
        self.log_dir.open()
        self.replicas = Replicas(HERE, self.stage.config, self.stage.metadata, [self.log_dir])
        self.stage.replicas = self.replicas
        self.workers = Workers(2, "records")

    async def begin(self) -> Desk:
        stage = await self.stage.begin()
        self.asked = Collaborators(
            broker_id=HERE, config=stage.config, metadata=stage.metadata, topic_configs=stage.topic_configs,
            replicas=self.replicas, admin=stage.topics, draw_producer_id=stage.ids.draw, workers=self.workers,
            groups=self.stage.coordinator, locator=stage.control.locator, configs=stage.configs,
            transactions=stage.control.transactions.coordinator,
            transaction_locator=stage.control.transactions.locator,
            verification=stage.control.transactions.verification,
            entities=stage.entities, authorization=None, controller=lambda: stage.control.controller,
        )  # fmt: skip
        self.fetch = fetch_of(self.asked)
        self.table = handlers(self.asked, self.fetch)
        return self

    async def end(self) -> None:
        await self.stage.end()
        self.replicas.abandon()
        self.workers.shutdown()
        self.log_dir.close()

    async def topic(self, name: str, partitions: int = 1, at: int = HERE, **config: str) -> bytes:
        """Create a topic with all its partitions at one broker; return its id."""
        assignment = {index: [at] for index in range(partitions)}
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return (await self.stage.topics.create(NewTopic(name, assignment=assignment, config=settings))).id

    def replica(self, topic: str, partition: int = 0) -> Replica:
        return self.replicas.leader(topic, partition)

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Encode a request, call its handler, and return the decoded answer; None if the handler gives no answer.

        A KafkaError becomes an answer of the API, as in the dispatcher; other exceptions are raised."""
        key, kind = KEYS[api], m.message(f"{api}Request")
        frame = codec.encode_request(key, version, 7, "test", kind(**fields))
        request, _ = codec.decode(kind, version, frame, codec.decode_request_header(frame).body_offset)
        try:
            response = self.table[key].by(request, Call(version, "test", CALLER))
            if inspect.isawaitable(response):
                response = await response
        except KafkaError as problem:
            response = self.table[key].failed(request, problem.code, problem.message)
        if response is None:
            return None
        parts = codec.encode_response_parts(key, version, 7, response)
        answer = b"".join(part.tobytes() if isinstance(part, Slice) else part for part in parts)
        return codec.decode_response(key, version, answer)[1]
