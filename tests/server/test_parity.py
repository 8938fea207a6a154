"""The native plane and the Python reference give the same bytes: random requests to two brokers, every answer compared.

Each seed makes a script of valid and hostile Produce and Fetch requests in a few versions; both brokers get it frame by
frame. Their answers, closed connections and files must be identical.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED
from tests.poisons import POISONS, SOUND
from tests.server.live import BASE_MS, KEYS, Live, Wire

TOPICS = ("plain", "small", "compact", "stamped", "nowhere")
PARTITIONS = 3
STEPS = 60
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
SHOWN = ["advertised.listeners=PLAINTEXT://twin:9092"]
"""The address that both brokers advertise."""
CLOSED, OPEN = b"closed", b"open"
UNREADABLE, COMPRESSED = list(POISONS.values()), list(SOUND.values())


class Step(NamedTuple):
    frame: bytes
    answered: bool  # False for acks=0


def mangled(rng: random.Random, data: bytes) -> bytes:
    """Bytes damaged at random: a flipped bit, a truncation or an appended tail."""
    out = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0 and out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[rng.randrange(len(out) + 1) :]
    elif kind == 2:
        out += rng.randbytes(rng.randrange(1, 20))
    return bytes(out)


class Script:
    """Requests of one client, which knows nothing of a broker but its topic ids."""

    def __init__(self, seed: int, ids: dict[str, bytes]) -> None:
        self._rng = random.Random(seed)
        self._ids = ids
        self._sequences: dict[tuple[int, str, int], int] = {}
        self._number = 0

    def steps(self) -> Iterator[Step]:
        for _ in range(STEPS):
            yield self._produce() if self._rng.random() < 0.6 else self._fetch()

    def _frame(self, name: str, version: int, request: Any) -> bytes:
        self._number += 1
        return codec.encode_request(KEYS[name], version, self._number, "parity", request)

    def _topic(self, kind: Any, version: int, **fields: Any) -> Any:
        name = self._rng.choice(TOPICS)
        identity = {"topic_id": self._ids[name]} if version >= 13 else {kind[1]: name}
        return kind[0](**identity, **fields), name

    def _records(self, name: str, partition: int) -> bytes | None:
        rng = self._rng
        how: dict[str, Any] = {}
        if rng.random() < 0.4:
            producer = rng.randrange(1, 4)
            place = producer, name, partition
            sequence = self._sequences.get(place, 0)
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        count = rng.randrange(1, 5)
        key = None if rng.random() < 0.2 else b"k"
        sizes = [rng.choice((0, 1, 30, 300)) for _ in range(count)]
        records = [(BASE_MS + n, key, rng.randbytes(size), ()) for n, size in enumerate(sizes)]
        data = core.build_batch(records, **how)
        if how and rng.random() < 0.7:  # otherwise a duplicate
            self._sequences[place] = sequence + count + (rng.random() < 0.1)
        odd = rng.random()
        if odd < 0.05:
            return rng.choice((None, b""))
        if odd > 0.9:
            return rng.choice(UNREADABLE)
        if odd > 0.8:
            return rng.choice(COMPRESSED)
        return mangled(rng, data) if odd < 0.2 else data

    def _produce(self) -> Step:
        rng = self._rng
        version = rng.choice(PRODUCE_VERSIONS)
        kind = m.ProduceRequest.TopicData
        acks = rng.choice((-1, -1, 1, 1, 1, 0 if rng.random() < 0.3 else 1, 7 if rng.random() < 0.1 else -1))
        topics = []
        for _ in range(rng.choice((1, 1, 1, 2, 0))):
            topic, name = self._topic((kind, "name"), version)
            for partition in rng.sample(range(PARTITIONS + (rng.random() < 0.1)), rng.choice((1, 1, 2))):
                topic.partition_data.append(kind.PartitionData(index=partition, records=self._records(name, partition)))
            topics.append(topic)
        request = m.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics)
        return Step(self._frame("Produce", version, request), acks != 0)

    def _fetch(self) -> Step:
        rng = self._rng
        version = rng.choice(FETCH_VERSIONS)
        kind = m.FetchRequest.Topics
        topics = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 0))):
            topic, _ = self._topic((kind, "topic"), version)
            for partition in rng.sample(range(PARTITIONS + (rng.random() < 0.1)), rng.choice((1, 2, 3))):
                topic.partitions.append(
                    kind.Partitions(
                        partition=partition,
                        fetch_offset=rng.choice((0, 0, 1, 2, 5, 9, 30, -1, 1 << 40)),
                        partition_max_bytes=rng.choice((1 << 20, 1 << 20, 1, 500, 0)),
                        current_leader_epoch=rng.choice((-1, -1, -1, 0, 5)) if version >= 9 else -1,
                        last_fetched_epoch=rng.choice((-1, -1, -1, 0, 3)) if version >= 12 else -1,
                        **({"high_watermark": 5} if version >= 18 and rng.random() < 0.3 else {}),
                    )
                )
            topics.append(topic)
        request = m.FetchRequest(
            **self._claim(version),
            max_wait_ms=rng.choice((0, 0, 1)),
            min_bytes=rng.choice((0, 1, 1 << 20)),
            max_bytes=rng.choice((1 << 24, 1 << 24, 1, 700, 0)),
            isolation_level=rng.choice((0, 0, 1)),
            topics=topics,
        )
        frame = self._frame("Fetch", version, request)
        return Step(mangled(rng, frame) if rng.random() < 0.05 else frame, True)

    def _claim(self, version: int) -> dict[str, Any]:
        """Return fields that claim to be from a broker, for some requests."""
        if self._rng.random() < 0.85:
            return {}
        broker_id = self._rng.choice((0, 1, 1001, -2))
        if version < 15:
            return {"replica_id": broker_id}
        replica_epoch = self._rng.choice((-1, 3))
        return {"replica_state": m.FetchRequest.ReplicaState(replica_id=broker_id, replica_epoch=replica_epoch)}


async def prepared(live: Live) -> dict[str, bytes]:
    """Create the topics; return the id of each, and a made-up one for an unknown topic."""
    wire = await live.connect()
    ids = {"nowhere": bytes([7]) * 16}
    for name, config in (
        ("plain", {}),
        ("small", {"max_message_bytes": "500"}),
        ("compact", {"cleanup_policy": "compact"}),
        ("stamped", {"message_timestamp_type": "CreateTime", "segment_bytes": "2000"}),
    ):
        ids[name] = (await wire.create(name, PARTITIONS, **config)).topic_id
    return ids


class Side:
    """One of the brokers, with a connection that is reopened after the broker closed it."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.wire: Wire | None = None

    async def say(self, step: Step) -> bytes:
        """Send a frame; return its answer, or CLOSED. With acks=0 it returns OPEN or CLOSED."""
        if self.wire is None:
            self.wire = await self.live.connect()
        self.wire.send_frame(step.frame)
        if not step.answered:
            # A request without an answer either runs or closes the connection: a request behind it shows which.
            number = 1 << 30
            self.wire.send_frame(codec.encode_request(KEYS["ApiVersions"], 0, number, "p", m.ApiVersionsRequest()))
        try:
            answer = await self.wire.frame()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.wire = None
            return CLOSED
        return answer if step.answered else OPEN


def files(live: Live) -> dict[str, bytes]:
    """The data files of every partition."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(Path(live.data_dir).glob("*-[0-9]*/*.log"))
    }


def asked(step: Step) -> str:
    """A readable form of a request."""
    header = codec.decode_request_header(step.frame)
    request, _ = codec.decode(SERVED[header.api_key].request, header.api_version, step.frame, header.body_offset)
    return f"v{header.api_version} {request}"


def shown(step: Step, answer: bytes) -> str:
    """A readable form of an answer."""
    if answer in (CLOSED, OPEN):
        return answer.decode()
    return repr(codec.decode_response(*struct.unpack_from(">hh", step.frame), answer))


async def twins(home: Path) -> tuple[Live, Live, dict[str, bytes]]:
    """Two brokers on copies of one data directory, so that ids and epochs are the same."""
    native, python = Live(home / "native", SHOWN), Live(home / "python", SHOWN, native_plane=False)
    await native.start()
    ids = await prepared(native)
    await native.stop()
    shutil.copytree(native.data_dir, python.data_dir)
    await native.start()
    await python.start()
    return native, python, ids


async def follow_some(live: Live) -> None:
    """Make a broker stop leading some partitions: one then follows itself, one an unknown broker; others stay."""
    assert live.broker is not None and live.broker.replicas is not None
    replicas, epoch = live.broker.replicas, 50
    await replicas.held("plain", 0).follow(live.broker.broker_id, epoch, 100)
    await replicas.held("plain", 1).follow(7, epoch, 100)
    await replicas.held("small", 2).follow(-1, epoch, 100)
    await replicas.held("compact", 0).follow(live.broker.broker_id, epoch, 100)
    replicas.held("stamped", 1).partition().become_offline(epoch, 100)


@pytest.mark.parametrize("seed", range(100, 108))
async def test_both_planes_say_who_leads_elsewhere(tmp_path: Path, seed: int) -> None:
    """Both planes answer alike when other brokers lead some of the partitions."""
    native, python, ids = await twins(tmp_path)
    try:
        for live in (native, python):
            await follow_some(live)
        one, other = Side(native), Side(python)
        for step in Script(seed, ids).steps():
            ours, theirs = await one.say(step), await other.say(step)
            assert ours == theirs, f"{asked(step)}\nnative {shown(step, ours)}\npython {shown(step, theirs)}"
        assert files(native) == files(python)
    finally:
        await native.stop()
        await python.stop()


@pytest.mark.parametrize("seed", range(24))
async def test_both_planes_say_the_same(tmp_path: Path, seed: int) -> None:
    """Both planes give the same answers, frame by frame, and write the same files."""
    native, python, ids = await twins(tmp_path)
    try:
        one, other = Side(native), Side(python)
        for step in Script(seed, ids).steps():
            ours, theirs = await one.say(step), await other.say(step)
            assert ours == theirs, f"{asked(step)}\nnative {shown(step, ours)}\npython {shown(step, theirs)}"
        assert files(native) == files(python)
    finally:
        await native.stop()
        await python.stop()
