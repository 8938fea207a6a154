"""Invalid requests between brokers get a Kafka error code or a closed connection, and change nothing."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pybroker.testing
from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED
from pybroker.server.broker import Broker
from pybroker.server.network import closed_connections
from pybroker.testing import ClusterHandle
from tests.asking import ask
from tests.harness import HOST
from tests.protocol.values import sample

CONTROL = ["LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"]
TOPIC_ID = bytes(range(16))
PATHS = ["..", ".", "../up", "a/b", "/", "a" * 250, "nul\0nul", "a\nb", "\x1b[2J", ""]
ROUNDS = 60


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterHandle]:
    monkeypatch.setattr(closed_connections, "SILENT_SECONDS", 0)
    with pybroker.testing.cluster(1) as cluster:
        yield cluster


def port(cluster: ClusterHandle) -> int:
    return int(cluster.bootstrap_servers.rpartition(":")[2])


def broker(cluster: ClusterHandle) -> Broker:
    """The broker object, which is in this process."""
    found: Any = cluster._members.lives[1]
    assert isinstance(found._injector.broker, Broker)
    return found._injector.broker


def epoch(cluster: ClusterHandle) -> int:
    """The controller epoch that the broker has."""
    return broker(cluster).metadata.image.controller_epoch


def state(index: int = 0, **fields: Any) -> Any:
    """The LeaderAndIsr state of a partition that broker 1 should follow."""
    told = {
        "controller_epoch": 1, "leader": 99, "leader_epoch": 0, "isr": [99, 1], "partition_epoch": 0,
        "replicas": [99, 1], "adding_replicas": [], "removing_replicas": [], "is_new": True, "leader_recovery_state": 0,
    }  # fmt: skip
    return m.LeaderAndIsrRequest.TopicStates.PartitionStates(partition_index=index, **(told | fields))


def lead_and_follow(cluster: ClusterHandle, name: str, *states: Any, topic_id: bytes = TOPIC_ID) -> list[int]:
    """Send LeaderAndIsr for one topic; return its error code, and those of the partitions."""
    topic = m.LeaderAndIsrRequest.TopicStates(topic_name=name, topic_id=topic_id, partition_states=list(states))
    answer = ask(
        port(cluster), "LeaderAndIsr", 7, controller_id=1, controller_epoch=epoch(cluster), broker_epoch=-1, type=0,
        live_leaders=[], topic_states=[topic],
    )  # fmt: skip
    return [answer.error_code, *(p.error_code for t in answer.topics for p in t.partition_errors)]


def directories(cluster: ClusterHandle) -> list[str]:
    return sorted(str(path) for path in Path(cluster._members.directory).rglob("*") if path.is_dir())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log messages that have a traceback."""
    return [r.getMessage() for r in caplog.records if r.exc_info]


def serves(cluster: ClusterHandle) -> None:
    assert ask(port(cluster), "ApiVersions", 2).error_code == 0


@pytest.mark.parametrize("name", PATHS)
def test_a_topic_is_no_path(one: ClusterHandle, name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = directories(one)
    assert lead_and_follow(one, name, state())[1:] == [errors.INVALID_TOPIC_EXCEPTION]
    assert directories(one) == before
    assert said(caplog) == []


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("index", [7, -1])
def test_nothing_is_deleted_elsewhere(
    one: ClusterHandle, name: str, index: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """StopReplica deletes no directory outside the log dirs for any topic name, and no other directory in them."""
    outside = Path(broker(one).config.log_dirs[0]).parent
    for victim in (tmp_path / f"backup-{index}", outside / f"up-{index}"):
        victim.mkdir()
    before = directories(one)
    kind = m.StopReplicaRequest.TopicStates
    for each in (name, str(tmp_path / "backup")):
        state = kind.PartitionStates(partition_index=index, leader_epoch=-2, delete_partition=True)
        answer = ask(
            port(one), "StopReplica", 4, controller_id=1, controller_epoch=epoch(one), broker_epoch=-1,
            topic_states=[kind(topic_name=each, partition_states=[state])],
        )  # fmt: skip
        assert [p.error_code for p in answer.partition_errors] == [errors.INVALID_TOPIC_EXCEPTION]
    assert directories(one) == before
    assert (tmp_path / f"backup-{index}").is_dir()
    assert said(caplog) == []


@pytest.mark.parametrize("name", PATHS)
def test_clients_are_told_of_no_topic_that_cannot_be(one: ClusterHandle, name: str) -> None:
    kind = m.UpdateMetadataRequest.TopicStates
    state = kind.PartitionStates(
        topic_name=name, partition_index=0, controller_epoch=1, leader=1, leader_epoch=0, isr=[1], zk_version=0,
        replicas=[1], offline_replicas=[],
    )  # fmt: skip
    live = m.UpdateMetadataRequest.LiveBrokers
    here = live.Endpoints(port=port(one), host=HOST, listener="PLAINTEXT", security_protocol=0)
    answer = ask(
        port(one), "UpdateMetadata", 8, controller_id=1, controller_epoch=epoch(one), broker_epoch=-1,
        topic_states=[kind(topic_name=name, topic_id=TOPIC_ID, partition_states=[state])],
        live_brokers=[live(id=1, endpoints=[here], rack=None)],
    )  # fmt: skip
    assert answer.error_code == errors.NONE
    assert name not in broker(one).metadata.image.by_name


WRONG: dict[str, dict[str, Any]] = {
    "a negative index": {"index": -1}, "a negative leader epoch": {"leader_epoch": -7},
    "a negative partition epoch": {"partition_epoch": -2}, "nobody's replica": {"replicas": []},
    "a leader that is no replica": {"leader": 1, "replicas": [2, 3]},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_role_that_cannot_be(one: ClusterHandle, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid role is refused, and no log is created for it."""
    fields = dict(WRONG[what])
    before = directories(one)
    code = lead_and_follow(one, "t", state(fields.pop("index", 0), **fields))[1]
    assert code in (errors.INVALID_REQUEST, errors.UNKNOWN_TOPIC_OR_PARTITION)
    assert directories(one) == before
    assert said(caplog) == []


def test_a_partition_that_is_told_twice(one: ClusterHandle, caplog: pytest.LogCaptureFixture) -> None:
    """One of two states for a partition is applied, the other has a stale epoch, and the log is opened once."""
    assert lead_and_follow(one, "t", state(), state())[0] == 0
    replica = broker(one).replicas.get("t", 0)
    assert replica is not None and not replica.offline
    assert lead_and_follow(one, "t", state(leader=1, leader_epoch=1)) == [0, 0]
    assert replica.leads
    assert said(caplog) == []


def test_an_update_with_a_mistake_changes_nothing(one: ClusterHandle, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown protocol, an invalid port or a host name that is too long gets INVALID_REQUEST, and the known brokers
    stay."""
    kind = m.UpdateMetadataRequest
    for fields in ({"security_protocol": -1}, {"security_protocol": 99}, {"port": 1 << 16}, {"host": "h" * 256}):
        sound = {"port": 1, "host": HOST, "listener": "PLAINTEXT", "security_protocol": 0}
        endpoint = kind.LiveBrokers.Endpoints(**(sound | fields))
        answer = ask(
            port(one), "UpdateMetadata", 8, controller_id=1, controller_epoch=epoch(one), broker_epoch=-1,
            topic_states=[], live_brokers=[kind.LiveBrokers(id=9, endpoints=[endpoint], rack=None)],
        )  # fmt: skip
        assert answer.error_code == errors.INVALID_REQUEST
        assert list(broker(one).metadata.image.brokers) == [1]
    assert said(caplog) == []


@pytest.mark.parametrize("name", [*CONTROL, "AllocateProducerIds"])
def test_values_at_random(one: ClusterHandle, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Random values sent as the current controller get an answer or a closed connection and no unexpected error, and
    the broker goes on serving."""
    api = next(api for api in SERVED.values() if api.name == name)
    rng = random.Random(name)
    for _ in range(ROUNDS):
        version = rng.randint(api.min_version, api.max_version)
        message = sample(api.request, version, rng)
        for field, value in (("controller_epoch", epoch(one)), ("broker_epoch", -1)):
            if hasattr(message, field):
                setattr(message, field, value)
        likely(message, rng)
        frame = bytearray(codec.encode_request(api.key, version, 5, "test", message))
        if rng.random() < 0.4:
            at = rng.randrange(8, len(frame))
            frame[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", rng.randbytes(4)])
        exchange(port(one), bytes(frame))
    assert said(caplog) == []
    serves(one)


def likely(message: Any, rng: random.Random) -> None:
    """Set fields of the message to this broker, and to a topic that may exist."""
    for topic in getattr(message, "topic_states", None) or ():
        topic.topic_name = rng.choice(["t", "u", topic.topic_name])
        for p in topic.partition_states:
            p.partition_index = rng.choice([0, 1, p.partition_index])
            if hasattr(p, "replicas"):
                p.replicas = rng.choice([[1], [1, 2], [1, 1], [2, 1, 3], p.replicas])
                p.leader = rng.choice([1, 2, -1, -2, p.leader])


def exchange(port: int, frame: bytes) -> bytes | None:
    """The answer to a frame; None if the connection was closed instead."""
    with socket.create_connection((HOST, port), 20) as there:
        there.sendall(struct.pack(">i", len(frame)) + frame)
        try:
            head = there.recv(4, socket.MSG_WAITALL)
        except ConnectionResetError:
            return None
        return there.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL) if head else None
