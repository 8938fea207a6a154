"""Kafka's znodes, as far as one broker's controller writes them: paths, JSON in, JSON out.

Who loads what is not as it was written gets StoreDamaged: a bit that went wrong in a node, SQLite does not see.
"""

import base64
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote

from pybroker.cluster.image import DELETED as BEING_DELETED
from pybroker.cluster.image import NO_EPOCH, LiveBroker, PartitionState
from pybroker.cluster.topics import Topic
from pybroker.config.listeners import SECURITY_PROTOCOLS
from pybroker.config.settings import INT_MAX
from pybroker.coordination.store import StoreDamaged
from pybroker.model import PLAINTEXT, Endpoint, HostPort
from pybroker.protocol.wire import STRING_MAX
from pybroker.security.quotas import CLIENT_ID, IP, USER, Entity

P = ParamSpec("P")
T = TypeVar("T")

DAMAGED = "a node of the coordination store is damaged: "
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
LOG_DIRS = "/brokers/log_dirs"
DELETIONS = "/admin/delete_topics"
DELETED = "/admin/deleted_topics"
"""Ours alone: the ids of topics that were deleted, until a start has seen that no log dir has anything of them."""
PRODUCER_IDS = "/latest_producer_id_block"
SEQUENCE_OF_IDS = "/brokers/seqid"
TOPIC_CONFIGS = "/config/topics"
CONFIGS = "/config"
USER_CONFIGS = "/config/users"
CLIENT_CONFIGS = "/config/clients"
IP_CONFIGS = "/config/ips"
DEFAULT_ENTITY = "<default>"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT = f"{LOG_DIR_EVENTS}/log_dir_event_"
LOG_DIR_FAILED = 1
DOUBTED = "pybroker.doubted"
"""A field that only pybroker writes, in the state of a partition."""
FEATURE = "/feature"
NO_FEATURES = b'{"features":{},"version":2,"status":1}'
"""The data that Kafka's controller writes there: finalized features are on (status 1), and there are none."""
PERSISTENT = (
    "/admin", DELETED, DELETIONS, "/brokers", BROKER_IDS, LOG_DIRS, SEQUENCE_OF_IDS, TOPICS, "/cluster", "/config",
    "/config/brokers", "/config/changes", "/config/clients", "/config/ips", "/config/topics", "/config/users",
    "/consumers", "/isr_change_notification", PRODUCER_IDS, LOG_DIR_EVENTS,
)  # fmt: skip
"""What must exist before anything else is written, parents first."""
OF_A_CLUSTER = tuple(path for path in PERSISTENT if path not in (DELETED, LOG_DIRS))
"""The same in a cluster, whose store has Kafka's nodes and no others."""


_ROOTS = {USER: "users", CLIENT_ID: "clients", IP: "ips"}
"""Where entities of a type lie, and where the clients of a user do below the user's node."""

HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""What may be half of a surrogate pair in JSON, alone."""
NUMBER = re.compile(r"-?[0-9]{1,19}")
EPOCH_MAX = INT_MAX - (1 << 16)
"""Of a leader or a controller, as the store has it: elections can go on for a while."""

PRODUCER_ID_MAX = (1 << 63) - 1 - (1 << 32)
"""Of the last id of a block, likewise."""


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_id(name: str) -> int:
    """Of the broker whose node has this name. Raises StoreDamaged."""
    if len(name) > 10 or not name.isdecimal() or str(int(name)) != name or int(name) >= 1 << 31:
        raise StoreDamaged(detail=f"{name[:100]!r} is no number of a broker")
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
    """Of one broker, or of all with None."""
    return f"/config/brokers/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def entity_node(name: str | None) -> str:
    """The name of the node of a user, a client id or an address, None for the default of all: as of a URL, as Kafka's
    Sanitizer makes it."""
    return DEFAULT_ENTITY if name is None else quote(name, safe="").replace("~", "%7E")


def name_of_node(node: str) -> str | None:
    """Whose node has this name."""
    return None if node == DEFAULT_ENTITY else unquote(node)


def entity_path(entity: Entity) -> str:
    """Of the entity of a quota, below /config."""
    return "/".join(f"{_ROOTS[kind]}/{entity_node(name)}" for kind, name in entity)


def entity_of_path(path: str) -> Entity | None:
    """The entity of a quota whose node lies there below /config; None: it is of none."""
    words = path.split("/")
    names = dict(zip(words[::2], words[1::2], strict=False))
    types = tuple(kind for kind, root in _ROOTS.items() if root in names)
    if len(words) != 2 * len(types) or [_ROOTS[kind] for kind in types] != words[::2] or (IP in types and types[1:]):
        return None
    return tuple((kind, name_of_node(names[_ROOTS[kind]])) for kind in types) or None


def log_dirs(broker_id: int) -> str:
    """The log dirs of a broker, with the paths that they had last."""
    return f"{LOG_DIRS}/{broker_id}"


def deletion(name: str) -> str:
    return f"{DELETIONS}/{name}"


def dump_deletion(topic_id: bytes) -> bytes:
    """What the wish for a deletion holds. Kafka's are empty, and it reads none."""
    return id_text(topic_id).encode()


def deleted(topic_id: bytes) -> str:
    return f"{DELETED}/{id_text(topic_id)}"


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _sound(load: Callable[P, T]) -> Callable[P, T]:
    """Have a function that loads a node raise StoreDamaged for what nobody wrote."""

    @functools.wraps(load)
    def checked(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return load(*arguments, **named)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            what = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise StoreDamaged(detail=f"{DAMAGED}{what}") from None

    return checked


def _load(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"{data[:100]!r} is not a JSON object")
    if HALF_CHARACTER.search(data):
        json.dumps(found, ensure_ascii=False).encode()  # ValueError for half a character, which UTF-8 cannot encode
    return found


def _number(text: str, least: int, most: int) -> int:
    """A number that a node has as text."""
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"{text[:100]!r} is no number from {least} to {most}")
    return int(text)


def _int32(found: object, least: int, most: int = INT_MAX) -> int:
    """A number that a request can carry: one that is none would be found where a broker is to be told of it."""
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{repr(found)[:100]} is no number from {least} to {most}")
    return found


def _brokers(found: object) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise ValueError(f"{repr(found)[:100]} is no list of brokers")
    brokers = tuple(_int32(each, 0) for each in found)
    if len(set(brokers)) < len(brokers):
        raise ValueError(f"a broker is named twice in {brokers[:100]}")
    return brokers


def _replicas(found: object) -> tuple[int, ...]:
    brokers = _brokers(found)
    if not brokers:
        raise ValueError("a partition has no replicas")
    return brokers


def _index(text: str) -> int:
    """The number of a partition from its text."""
    if len(text) > 10 or not text.isdecimal() or str(int(text)) != text:
        raise ValueError(f"{text[:100]!r} is no number of a partition")
    return int(text)


def _texts(found: Mapping[str, object]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError("a value in it is no text")
    return {key: str(value) for key, value in found.items()}


def id_text(topic_id: bytes | bytearray) -> str:
    """16 bytes as Kafka writes ids: url-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def draw_id(random: Random) -> bytes:
    """A random id; its text begins with no dash, which command lines would take for an option (see Kafka's Uuid)."""
    while True:
        drawn = bytearray(random.getrandbits(128).to_bytes(16, "big"))
        drawn[6] = 0x40 | drawn[6] & 0x0F  # version 4 of RFC 9562, as Kafka's are
        drawn[8] = 0x80 | drawn[8] & 0x3F
        if not id_text(drawn).startswith("-"):
            return bytes(drawn)


def id_bytes(text: str) -> bytes:
    found = base64.urlsafe_b64decode(text + "==")
    if len(found) != 16:
        raise ValueError(f"{text[:100]!r} is no id")
    return found


class TopicNode(NamedTuple):
    id: bytes
    replicas: list[tuple[int, ...]]
    directories: dict[int, str]
    made_from: int | None


def dump_topic(topic: Topic, made_from: int | None = None) -> bytes:
    """Kafka's topic node, and where each partition lies, which Kafka has in KRaft alone (KIP-858).

    `made_from`: the partitions from this one on are being made, and no client was told of them yet."""
    making = {} if made_from is None else {"made_from": made_from}
    return _dump(
        {
            **making,
            "version": 3,
            "topic_id": id_text(topic.id),
            "partitions": {str(index): list(state.replicas) for index, state in enumerate(topic.partitions)},
            "adding_replicas": {},
            "removing_replicas": {},
            "directories": {str(index): directory for index, directory in topic.directories.items()},
        }
    )


def dump_assignment(topic_id: bytes, replicas: Sequence[Sequence[int]]) -> bytes:
    """Kafka's topic node, as a cluster has it: the replicas of each partition."""
    return _dump(
        {
            "version": 3,
            "topic_id": id_text(topic_id),
            "partitions": {str(index): list(held) for index, held in enumerate(replicas)},
            "adding_replicas": {},
            "removing_replicas": {},
        }
    )


@_sound
def with_partitions(data: bytes, more: Mapping[int, Sequence[int]]) -> bytes:
    """Return a topic's node with the replicas of more partitions, and everything else that Kafka wrote there."""
    found = _load(data)
    return _dump({**found, "partitions": found["partitions"] | {str(index): list(more[index]) for index in more}})


@_sound
def load_controller_epoch(data: bytes) -> int:
    return _number(data.decode(), 0, EPOCH_MAX)


@_sound
def load_topic(data: bytes) -> TopicNode:
    found = _load(data)
    held = {_index(index): _replicas(replicas) for index, replicas in found["partitions"].items()}
    directories = {int(index): directory for index, directory in _texts(found.get("directories", {})).items()}
    if held and max(held) >= len(held):
        raise ValueError(f"its {len(held)} partitions are not numbered from 0 without gaps: one is {max(held)}")
    replicas = [held[index] for index in range(len(held))]
    made_from = found.get("made_from")
    return TopicNode(
        id_bytes(found["topic_id"]), replicas, directories, None if made_from is None else _int32(made_from, 0)
    )


def dump_state(state: PartitionState, *, doubted: bool = False) -> bytes:
    """The state as JSON. `doubted`: the ISR is only a list of the replicas, for the last state is unknown
    (`is_doubted`)."""
    node: dict[str, object] = {
        "version": 1,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "controller_epoch": state.controller_epoch,
        "isr": list(state.isr),
    }
    return _dump(node | {DOUBTED: True} if doubted else node)


@_sound
def load_state(data: bytes, replicas: Sequence[int], version: int) -> PartitionState:
    found = _load(data)
    leader = _int32(found["leader"], BEING_DELETED)
    leader_epoch, controller_epoch = (
        _int32(found[key], NO_EPOCH, EPOCH_MAX) for key in ("leader_epoch", "controller_epoch")
    )
    return PartitionState(tuple(replicas), leader, leader_epoch, _brokers(found["isr"]), controller_epoch, version)


def is_doubted(data: bytes) -> bool:
    """True if logs have to be compared before a leader is elected: cluster/rollback.py."""
    return DOUBTED.encode() in data


def dump_config(config: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(config)})


@_sound
def load_config(data: bytes) -> dict[str, str]:
    return _texts(_load(data)["config"])


def load_entity_config(data: bytes) -> dict[str, str]:
    """Of a user, a client id or an address. A node that only stands above others is empty."""
    return load_config(data) if data not in (b"", b"null") else {}


def dump_config_change(entity: str) -> bytes:
    """The notice that the settings of an entity changed: its path below /config."""
    return _dump({"version": 2, "entity_path": entity})


@_sound
def load_config_change(data: bytes) -> str:
    """The entity: its path below /config. Kafka's brokers before 0.11 wrote version 1, with two keys."""
    found = _load(data)
    if found.get("version") == 1:
        return f"{found['entity_type']}/{found['entity_name']}"
    return str(found["entity_path"])


def dump_log_dir_event(broker_id: int) -> bytes:
    """The notice that a log dir of a broker has failed."""
    return _dump({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILED})


@_sound
def load_log_dir_event(data: bytes) -> int:
    """The broker."""
    return _int32(_load(data)["broker"], 0)


def dump_controller(broker_id: int, now_ms: int) -> bytes:
    return _dump({"version": 2, "brokerid": broker_id, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


@_sound
def load_controller(data: bytes) -> int:
    return _int32(_load(data)["brokerid"], 0)


def dump_log_dirs(paths: Mapping[str, str]) -> bytes:
    """{directory.id: path}"""
    return _dump({"version": 1, "directories": dict(paths)})


@_sound
def load_log_dirs(data: bytes) -> dict[str, str]:
    return _texts(_load(data)["directories"])


def dump_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


@_sound
def load_cluster_id(data: bytes) -> str:
    return str(_load(data)["id"])


def dump_broker(broker: LiveBroker, now_ms: int) -> bytes:
    """The registration of a broker; `host` and `port`, for old readers, are those of its first plaintext listener."""
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
    return _dump(registration)


@_sound
def load_broker(broker_id: int, data: bytes) -> LiveBroker:
    found = _load(data)
    endpoints = [Endpoint.parse(text) for text in found["endpoints"]]
    protocols = _texts(found["listener_security_protocol_map"])
    if protocols.keys() != {endpoint.listener for endpoint in endpoints}:
        raise ValueError(f"its listeners and their security protocols differ: {endpoints}, {protocols}")
    if not endpoints:
        raise ValueError("it has no listeners")
    if not set(protocols.values()) <= set(SECURITY_PROTOCOLS):
        raise ValueError(f"a security protocol in it is unknown: {protocols}")
    at = {endpoint.listener: HostPort(endpoint.host, endpoint.port) for endpoint in endpoints}
    rack = found.get("rack")
    if not isinstance(rack, str | None):
        raise ValueError(f"its rack is {repr(rack)[:100]}, which is no text")
    for text in (rack or "", *at, *(each.host for each in at.values())):
        if len(text.encode()) > STRING_MAX:
            raise ValueError(f"{text[:100]!r}... is longer than clients can be sent")
    return LiveBroker(broker_id, at, protocols, rack)


def dump_block(broker_id: int, first: int, last: int) -> bytes:
    return _dump({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


@_sound
def load_block(data: bytes) -> int:
    """The last id of the block that was taken latest."""
    return _number(_load(data)["block_end"], -1, PRODUCER_ID_MAX)
