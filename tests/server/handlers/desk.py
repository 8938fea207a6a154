"""The handlers of a broker as its table puts them together, without sockets, and whom they ask: a store in memory, a
controller, and replicas whose logs lie in a directory of the test."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from pybroker.cluster.caller import Call, Caller
from pybroker.config import BrokerConfig
from pybroker.controller.planning import NewTopic
from pybroker.core import Slice
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.model import PLAINTEXT
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import KNOWN
from pybroker.replication.logdirs import LogDir
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.workers import Workers
from pybroker.server.group_locator import Locator
from pybroker.server.table import Collaborators, fetch_of, handlers
from tests.controller.stage import Stage

KEYS = {api.name: api.key for api in KNOWN.values()}
CALLER = Caller("somewhere", 1, PLAINTEXT)
HERE, ELSEWHERE = 1, 2


class Desk:
    """Broker 1, which is the controller; broker 2 is alive, and holds what it is given."""

    def __init__(self, path: Path, *sets: str) -> None:
        self.stage = Stage(brokers=2)
        self.stage.config = BrokerConfig.load(
            None, ["offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0", *sets]
        )
        self.log_dir_path = path
        self.log_dir = LogDir(str(path))
        self.log_dir.open()
        self.replicas = Replicas(HERE, self.stage.config, self.stage.metadata, [self.log_dir])
        self.stage.holders = self.replicas  # type: ignore[assignment]
        self.workers = Workers(2, "records")

    async def begin(self) -> Desk:
        stage = await self.stage.begin()
        groups = Coordinator(stage.config, self.workers)
        locator = Locator(HERE, stage.metadata, self.replicas, stage.topics, groups)
        self.asked = Collaborators(
            HERE, stage.config, stage.metadata, stage.topic_configs, self.replicas, stage.topics, stage.ids.draw,
            self.workers, groups, locator, stage.configs, stage.entities, None,
        )  # fmt: skip
        self.fetch = fetch_of(self.asked)
        self.table = handlers(self.asked, self.fetch)
        return self

    async def end(self) -> None:
        self.replicas.abandon()
        self.workers.shutdown()
        self.log_dir.close()
        await self.stage.end()

    async def topic(self, name: str, partitions: int = 1, at: int = HERE, **config: str) -> bytes:
        """Create a topic whose partitions lie all at one broker; its id."""
        assignment = {index: [at] for index in range(partitions)}
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return (await self.stage.topics.create(NewTopic(name, assignment=assignment, config=settings))).id

    def replica(self, topic: str, partition: int = 0) -> Replica:
        return self.replicas.leader(topic, partition)

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        """What the handler answers to a request as it comes off the wire, as its client reads it; None for no answer.

        A KafkaError is told in the shape of the API, as the dispatcher does; what else is raised comes up as it is."""
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
