"""Kafka's znodes and a few of pybroker's own: their paths, and their data as JSON.

A load function raises StoreDamaged for data that is not as it was written: SQLite does not detect a flipped bit.
"""

import base64
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pybroker.config.listeners import SECURITY_PROTOCOLS
from pybroker.config.settings import INT_MAX
from pybroker.coordination.store import StoreDamaged
from pybroker.decisions.image import DELETED as BEING_DELETED
from pybroker.decisions.image import NO_EPOCH, NO_LEADER, LiveBroker, PartitionState
from pybroker.decisions.topics import Topic
from pybroker.metadata.node_json import (
    broker_list,
    dump,
    index_of,
    int32,
    load_object,
    number_of,
    replica_list,
    sound,
    texts_of,
)
from pybroker.model import PLAINTEXT, Endpoint, HostPort, TopicPartition
from pybroker.protocol.wire import STRING_MAX
from pybroker.security.quotas import CLIENT_ID, IP, USER, Entity

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
LOG_DIRS = "/brokers/log_dirs"
DELETIONS = "/admin/delete_topics"
DELETED = "/admin/deleted_topics"
"""Only pybroker's: the ids of deleted topics, kept until a start has found no log dir with data of them; in a cluster
only of topics of which brokers that are away have logs that a reassignment gave up."""
PRODUCER_IDS = "/latest_producer_id_block"
SEQUENCE_OF_IDS = "/brokers/seqid"
TOPIC_CONFIGS = "/config/topics"
CONFIGS = "/config"
USER_CONFIGS = "/config/users"
DEFAULT_ENTITY = "<default>"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT = f"{LOG_DIR_EVENTS}/log_dir_event_"
LOG_DIR_FAILED = 1
DOUBTED = "pybroker.doubted"
"""A field of a partition's state that only pybroker writes."""
ADDING, REMOVING, GIVEN_UP = "adding_replicas", "removing_replicas", "pybroker.given_up_replicas"
"""Fields of a topic's node with the replicas of each partition that is being reassigned; only pybroker has the last."""
REASSIGNMENTS = "/admin/reassign_partitions"
"""A request to reassign partitions, as Kafka's tools made it before KIP-455; deleted when it is done."""
FEATURE = "/feature"
NO_FEATURES = b'{"features":{},"version":2,"status":1}'
"""The data that Kafka's controller writes to FEATURE: finalized features are on (status 1), and there are none."""
PERSISTENT = (
    "/admin", DELETED, DELETIONS, "/brokers", BROKER_IDS, LOG_DIRS, SEQUENCE_OF_IDS, TOPICS, "/cluster", "/config",
    "/config/brokers", "/config/changes", "/config/clients", "/config/ips", "/config/topics", "/config/users",
    "/consumers", "/isr_change_notification", PRODUCER_IDS, LOG_DIR_EVENTS,
)  # fmt: skip
"""Nodes that must exist before any other is written, parents first."""
OF_A_CLUSTER = tuple(path for path in PERSISTENT if path not in (DELETED, LOG_DIRS))
"""PERSISTENT in a cluster, whose store has only Kafka's nodes."""


_ROOTS = {USER: "users", CLIENT_ID: "clients", IP: "ips"}
"""The parent node of each type of entity; that of client ids also below a user's node."""

EPOCH_MAX = INT_MAX - (1 << 16)
"""The highest leader or controller epoch that is accepted from the store: it leaves room for more elections."""

PRODUCER_ID_MAX = (1 << 63) - 1 - (1 << 32)
"""The highest last id of a block that is accepted from the store: it leaves room for more blocks."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_id(name: str) -> int:
    """The id of the broker whose node has this name. Raises StoreDamaged."""
    if len(name) > 10 or not name.isdecimal() or str(int(name)) != name or int(name) >= 1 << 31:
        raise StoreDamaged(detail=f"{name[:100]!r} is not a broker id")
    return int(name)


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{partitions(name)}/{index}"


def state(name: str, index: int) -> str:
    return f"{partition(name, index)}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(broker_id: int | None) -> str:
    """The path of one broker's settings, or with None of those of all brokers."""
    return f"/config/brokers/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def entity_node(name: str | None) -> str:
    """The node name of a user, a client id or an address, URL-encoded as by Kafka's Sanitizer; None: the default."""
    return DEFAULT_ENTITY if name is None else quote(name, safe="").replace("~", "%7E")


def name_of_node(node: str) -> str | None:
    """The user, client id or address whose node has this name; None for the default."""
    return None if node == DEFAULT_ENTITY else unquote(node)


def entity_path(entity: Entity) -> str:
    """The path of an entity of quotas, below /config."""
    return "/".join(f"{_ROOTS[kind]}/{entity_node(name)}" for kind, name in entity)


def entity_of_path(path: str) -> Entity | None:
    """The entity of quotas whose node has this path below /config; None if the path is of another kind."""
    words = path.split("/")
    names = dict(zip(words[::2], words[1::2], strict=False))
    types = tuple(kind for kind, root in _ROOTS.items() if root in names)
    if len(words) != 2 * len(types) or [_ROOTS[kind] for kind in types] != words[::2] or (IP in types and types[1:]):
        return None
    return tuple((kind, name_of_node(names[_ROOTS[kind]])) for kind in types) or None


def log_dirs(broker_id: int) -> str:
    """The node with the log dirs of a broker and their last paths."""
    return f"{LOG_DIRS}/{broker_id}"


def deletion(name: str) -> str:
    return f"{DELETIONS}/{name}"


def dump_deletion(topic_id: bytes) -> bytes:
    """The data of a request to delete a topic. Kafka writes none, and does not read it."""
    return id_text(topic_id).encode()


def deleted(topic_id: bytes) -> str:
    return f"{DELETED}/{id_text(topic_id)}"


def dump_deleted(brokers: Sequence[int]) -> bytes:
    """The data of a deleted topic's node in a cluster: the brokers that are away and have logs of it."""
    return dump({"version": 1, "brokers": list(brokers)})


@sound
def load_deleted(name: str, data: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The id of a deleted topic, from its node's name, and the brokers that have logs of it."""
    return id_bytes(name), broker_list(load_object(data)["brokers"])


def id_text(topic_id: bytes | bytearray) -> str:
    """Kafka's text of a 16-byte id: url-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def draw_id(random: Random) -> bytes:
    """A random id whose text does not begin with a dash: command lines would take it for an option (Kafka's Uuid)."""
    while True:
        drawn = bytearray(random.getrandbits(128).to_bytes(16, "big"))
        drawn[6] = 0x40 | drawn[6] & 0x0F  # version 4 of RFC 9562, as Kafka's are
        drawn[8] = 0x80 | drawn[8] & 0x3F
        if not id_text(drawn).startswith("-"):
            return bytes(drawn)


def id_bytes(text: str) -> bytes:
    found = base64.urlsafe_b64decode(text + "==")
    if len(found) != 16:
        raise ValueError(f"{text[:100]!r} is not an id")
    return found


class TopicNode(NamedTuple):
    id: bytes
    replicas: list[tuple[int, ...]]
    directories: dict[int, str]
    moves: Mapping[int, PartitionState] = {}
    """The replicas of partitions that are being reassigned, without leader, epochs and ISR."""

    def partition(self, index: int) -> PartitionState:
        """The replicas of a partition, as a state that is not written yet."""
        return self.moves.get(index) or _unwritten(self.replicas[index])


def _unwritten(replicas: Sequence[int]) -> PartitionState:
    return PartitionState(tuple(replicas), NO_LEADER, NO_EPOCH, (), NO_EPOCH, NO_EPOCH)


def dump_topic(topic: Topic) -> bytes:
    """Kafka's topic node, with the log dir of each partition, which Kafka has only in KRaft (KIP-858)."""
    return dump(
        {
            "version": 3,
            "topic_id": id_text(topic.id),
            "partitions": {str(index): list(state.replicas) for index, state in enumerate(topic.partitions)},
            "adding_replicas": {},
            "removing_replicas": {},
            "directories": {str(index): directory for index, directory in topic.directories.items()},
        }
    )


def dump_assignment(topic_id: bytes, replicas: Sequence[Sequence[int]]) -> bytes:
    """Kafka's topic node, as used in a cluster: the replicas of each partition."""
    return dump(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(index): list(held) for index, held in enumerate(replicas)},
            "adding_replicas": {},
            "removing_replicas": {},
        }
    )


@sound
def with_partitions(data: bytes, more: Mapping[int, Sequence[int]]) -> bytes:
    """Return a topic's node with the replicas of more partitions, keeping all other fields."""
    found = load_object(data)
    return dump({**found, "partitions": found["partitions"] | {str(index): list(more[index]) for index in more}})


@sound
def with_replicas(data: bytes, changed: Mapping[int, PartitionState]) -> bytes:
    """Return a topic's node with the replicas of these partitions, keeping all other fields."""
    found = load_object(data)
    fields: dict[str, dict[str, object]] = {
        name: {**found.get(name, {})} for name in ("partitions", ADDING, REMOVING, GIVEN_UP)
    }
    for index, state in changed.items():
        lists = state.replicas, state.adding, state.removing, state.given_up
        for field, brokers in zip(fields.values(), lists, strict=True):
            field.pop(str(index), None)
            if brokers:
                field[str(index)] = list(brokers)
    if not fields[GIVEN_UP]:  # then the node is as Kafka writes it
        found.pop(GIVEN_UP, None)
        fields.pop(GIVEN_UP)
    return dump({**found, **fields})


@sound
def load_reassignments(data: bytes) -> dict[TopicPartition, list[int]]:
    """The target of each partition in the node REASSIGNMENTS."""
    found = {}
    for each in load_object(data)["partitions"]:
        topic, index = each["topic"], int32(each["partition"], 0)
        if not isinstance(topic, str):
            raise ValueError(f"{repr(topic)[:100]} is not the name of a topic")
        found[TopicPartition(topic, index)] = list(replica_list(each["replicas"]))
    return found


def dump_reassignments(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    listed = [{"topic": key.topic, "partition": key.partition, "replicas": list(targets[key])} for key in targets]
    return dump({"version": 1, "partitions": listed})


@sound
def with_directories(data: bytes, more: Mapping[int, str]) -> bytes:
    """Return a topic's node with the log dirs of these partitions, keeping all other fields."""
    found = load_object(data)
    directories = {**found.get("directories", {}), **{str(index): directory for index, directory in more.items()}}
    return dump({**found, "directories": directories})


@sound
def load_controller_epoch(data: bytes) -> int:
    return number_of(data.decode(), 0, EPOCH_MAX)


@sound
def load_topic(data: bytes) -> TopicNode:
    found = load_object(data)
    held = {index_of(index): replica_list(replicas) for index, replicas in found["partitions"].items()}
    directories = {int(index): directory for index, directory in texts_of(found.get("directories", {})).items()}
    if held and max(held) >= len(held):
        raise ValueError(f"its {len(held)} partitions are not numbered from 0 without gaps: one is {max(held)}")
    replicas = [held[index] for index in range(len(held))]
    return TopicNode(id_bytes(found["topic_id"]), replicas, directories, _moves(found, replicas))


def _moves(found: Mapping[str, Any], replicas: Sequence[tuple[int, ...]]) -> dict[int, PartitionState]:
    """The partitions of a topic's node that are being reassigned."""
    fields = [found.get(name) or {} for name in (ADDING, REMOVING, GIVEN_UP)]
    moves = {}
    for index in {index_of(index) for field in fields for index, brokers in field.items() if brokers}:
        if index >= len(replicas):
            raise ValueError(f"partition {index} is reassigned, but the topic has {len(replicas)}")
        adding, removing, given_up = (broker_list(field.get(str(index), [])) for field in fields)
        held = {*replicas[index]}
        if not held >= {*adding, *removing} or held <= {*removing} or held <= {*adding} or {*adding} & {*removing}:
            raise ValueError(
                f"partition {index} with the replicas {replicas[index][:20]} cannot add {adding[:20]} and remove "
                f"{removing[:20]}"
            )
        # A replica of Kafka's that this broker gave up earlier is one again.
        given_up = tuple(broker for broker in given_up if broker not in held or broker in removing)
        state = _unwritten(replicas[index])
        moves[index] = state._replace(adding=adding, removing=removing, given_up=given_up)
    return moves


def dump_state(state: PartitionState, *, doubted: bool = False) -> bytes:
    """The state as JSON. `doubted`: the last state was lost, so the ISR only lists the replicas (`is_doubted`)."""
    node: dict[str, object] = {
        "version": 1,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "controller_epoch": state.controller_epoch,
        "isr": list(state.isr),
    }
    return dump(node | {DOUBTED: True} if doubted else node)


@sound
def load_state(data: bytes, replicas: Sequence[int], version: int) -> PartitionState:
    found = load_object(data)
    leader = int32(found["leader"], BEING_DELETED)
    leader_epoch, controller_epoch = (
        int32(found[key], NO_EPOCH, EPOCH_MAX) for key in ("leader_epoch", "controller_epoch")
    )
    return PartitionState(tuple(replicas), leader, leader_epoch, broker_list(found["isr"]), controller_epoch, version)


def is_doubted(data: bytes) -> bool:
    """True if logs must be compared before a leader is elected (decisions/rollback.py)."""
    return DOUBTED.encode() in data


def dump_config(config: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(config)})


@sound
def load_config(data: bytes) -> dict[str, str]:
    return texts_of(load_object(data)["config"])


def load_entity_config(data: bytes) -> dict[str, str]:
    """The settings of a user, a client id or an address. The node is empty if it only has children."""
    return load_config(data) if data not in (b"", b"null") else {}


def dump_config_change(entity: str) -> bytes:
    """The notice that the settings of an entity changed: its path below /config."""
    return dump({"version": 2, "entity_path": entity})


@sound
def load_config_change(data: bytes) -> str:
    """The path of the changed entity below /config. Kafka before 0.11 wrote version 1, with two keys."""
    found = load_object(data)
    if found.get("version") == 1:
        return f"{found['entity_type']}/{found['entity_name']}"
    return str(found["entity_path"])


def dump_log_dir_event(broker_id: int) -> bytes:
    """The notice that a log dir of a broker has failed."""
    return dump({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILED})


@sound
def load_log_dir_event(data: bytes) -> int:
    """The id of the broker whose log dir failed."""
    return int32(load_object(data)["broker"], 0)


def dump_controller(broker_id: int, now_ms: int) -> bytes:
    return dump({"version": 2, "brokerid": broker_id, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


@sound
def load_controller(data: bytes) -> int:
    return int32(load_object(data)["brokerid"], 0)


def dump_log_dirs(paths: Mapping[str, str]) -> bytes:
    """The node with {directory.id: path}."""
    return dump({"version": 1, "directories": dict(paths)})


@sound
def load_log_dirs(data: bytes) -> dict[str, str]:
    return texts_of(load_object(data)["directories"])


def dump_cluster_id(cluster_id: str) -> bytes:
    return dump({"version": "1", "id": cluster_id})


@sound
def load_cluster_id(data: bytes) -> str:
    return str(load_object(data)["id"])


def dump_broker(broker: LiveBroker, now_ms: int) -> bytes:
    """A broker's registration; `host` and `port`, for old clients, are those of its first PLAINTEXT listener."""
    plain = (at for listener, at in broker.endpoints.items() if broker.protocols[listener] == PLAINTEXT)
    host, port = next(plain, (None, -1))
    registration: dict[str, object] = {
        "version": 5,
        "host": host,
        "port": port,
        "endpoints": [str(Endpoint(listener, *at)) for listener, at in broker.endpoints.items()],
        "listener_security_protocol_map": dict(broker.protocols),
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "features": {},
    }
    if broker.rack is not None:
        registration["rack"] = broker.rack
    return dump(registration)


@sound
def load_broker(broker_id: int, data: bytes) -> LiveBroker:
    found = load_object(data)
    endpoints = [Endpoint.parse(text) for text in found["endpoints"]]
    protocols = texts_of(found["listener_security_protocol_map"])
    if protocols.keys() != {endpoint.listener for endpoint in endpoints}:
        raise ValueError(f"its listeners and their security protocols differ: {endpoints}, {protocols}")
    if not endpoints:
        raise ValueError("it has no listeners")
    if not set(protocols.values()) <= set(SECURITY_PROTOCOLS):
        raise ValueError(f"a security protocol in it is unknown: {protocols}")
    at = {endpoint.listener: HostPort(endpoint.host, endpoint.port) for endpoint in endpoints}
    rack = found.get("rack")
    if not isinstance(rack, str | None):
        raise ValueError(f"its rack is {repr(rack)[:100]}, which is not a string")
    for text in (rack or "", *at, *(each.host for each in at.values())):
        if len(text.encode()) > STRING_MAX:
            raise ValueError(f"{text[:100]!r}... is too long to be sent to clients")
    return LiveBroker(broker_id, at, protocols, rack)


def dump_block(broker_id: int, first: int, last: int) -> bytes:
    return dump({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


@sound
def load_block(data: bytes) -> int:
    """The last id of the latest block."""
    return number_of(load_object(data)["block_end"], -1, PRODUCER_ID_MAX)
