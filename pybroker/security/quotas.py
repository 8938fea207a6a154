"""Client quotas as entities have them (KIP-13, 55, 124, 257, 546, 599): who may do how much, and which level wins.

An entity is one or two components, each a type with a name, or with None for the default of that type:

    user + client-id     user     client-id     ip

Of what is set for a client the first of eight levels holds, and nothing adds up. The level says who shares a bucket:
one that names users and clients has a bucket for each pair, one of users a bucket a user, one of clients a bucket a
client id. An empty client id matches no level that names clients (KAFKA-13341).
"""

import ipaddress
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.errors import KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"

NAME_MAX: Final = 1024
"""Characters of an entity's name: it becomes the name of a node."""

Component = tuple[str, str | None]
Entity = tuple[Component, ...]
"""Its components in the order of TYPES."""


class Key(NamedTuple):
    """A quota: the largest value, and whether it may have a fraction."""

    most: float
    fraction: bool
    unit: str


OF_CLIENTS: Final[Mapping[str, Key]] = {
    PRODUCER: Key(2.0**63, False, "bytes a second of Produce requests"),
    CONSUMER: Key(2.0**63, False, "bytes a second of Fetch answers"),
    REQUEST: Key(1e12, True, "percent of a thread's time"),
    MUTATION: Key(1e12, True, "partitions created or deleted a second"),
}
OF_IPS: Final[Mapping[str, Key]] = {CONNECTION: Key(2.0**31 - 1, False, "connections a second")}


class Bucket(NamedTuple):
    """Who counts together, and how much they may; an empty user or client id: all of them."""

    user: str
    client_id: str
    limit: float


def entity_of(components: Iterable[Component]) -> Entity:
    """The entity of these components. Raises INVALID_REQUEST for what is none."""
    found: dict[str, str | None] = {}
    for kind, name in components:
        if kind not in TYPES:
            raise _bad(f"there are no quotas of the entity type {shown(kind)}: there are {', '.join(TYPES)}")
        if kind in found:
            raise _bad(f"an entity has one {kind}")
        found[kind] = _checked(kind, name)
    if not found:
        raise _bad("an entity has a user, a client-id or an ip")
    if IP in found and len(found) > 1:
        raise _bad("an ip is an entity by itself")
    return tuple((kind, found[kind]) for kind in TYPES if kind in found)


def _checked(kind: str, name: str | None) -> str | None:
    if name is None:
        return None
    if not name:
        raise _bad(f"the {kind} has no name: null is the default of all")
    if len(name) > NAME_MAX:
        raise _bad(f"the {kind} has a name of {len(name)} characters; allowed are {NAME_MAX}")
    if name in (".", ".."):
        raise _bad(f"the {kind}'s name is that of a node in ZooKeeper, not {name!r}")
    return name


def keys_of(entity: Entity) -> Mapping[str, Key]:
    return OF_IPS if entity[0][0] == IP else OF_CLIENTS


def text_of(entity: Entity, key: str, value: float) -> str:
    """A value as the store has it. Raises INVALID_REQUEST for a quota or a value that the entity cannot have."""
    kind = keys_of(entity).get(key)
    if kind is None:
        raise _bad(f"{shown(key)} is no quota of this entity: it has {', '.join(keys_of(entity))}")
    if not math.isfinite(value) or not 0 <= value < kind.most:
        raise _bad(f"{key} is {value}: a number of {kind.unit} from 0 on is allowed")
    if kind.fraction:
        return repr(float(value))
    if abs(value - round(value)) > 1e-6:
        raise _bad(f"{key} is {value}: it has no fraction")
    return str(round(value))


def values_of(entity: Entity, config: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """The quotas among what an entity has; and the names of those that cannot be read, and do not hold."""
    values, unreadable = dict[str, float](), []
    for key, kind in keys_of(entity).items():
        if key not in config:
            continue
        try:
            value = float(config[key])
        except ValueError:
            value = math.nan
        if 0 <= value <= kind.most:
            values[key] = value
        else:
            unreadable.append(key)
    return values, unreadable


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, why)


class ClientQuotas:
    """{entity: {quota: value}}, kept by what is told of each entity; and whose bucket a client counts in."""

    def __init__(self) -> None:
        self._held: dict[Entity, dict[str, float]] = {}
        self._changes = 0
        self.number = 0
        """Of what holds now: another after each change, 0 while no client has a quota."""
        self.on_changed: list[Callable[[], object]] = []
        """Who goes by quotas, of clients or of addresses."""

    def all(self) -> Mapping[Entity, Mapping[str, float]]:
        return self._held

    def take(self, entity: Entity, config: Mapping[str, str]) -> list[str]:
        """These are all the settings that an entity has now. Quotas that cannot be read, and do not hold."""
        values, unreadable = values_of(entity, config)
        if values != self._held.get(entity, {}):
            if values:
                self._held[entity] = values
            else:
                del self._held[entity]
            self._tell()
        return unreadable

    def keep(self, entities: Iterable[Entity]) -> None:
        """Forget all entities but these."""
        gone = self._held.keys() - set(entities)
        for entity in gone:
            del self._held[entity]
        if gone:
            self._tell()

    def _tell(self) -> None:
        self._changes += 1
        self.number = self._changes if any(entity[0][0] != IP for entity in self._held) else 0
        for hear in self.on_changed:
            hear()

    def bucket(self, key: str, user: str, client_id: str) -> Bucket | None:
        """Where a client counts for a quota; None: nowhere."""
        for entity, shared_by in _levels(user, client_id):
            limit = self._held.get(entity, {}).get(key)
            if limit is not None:
                return Bucket(*shared_by, limit)
        return None

    def connection_rates(self) -> dict[str | None, float]:
        """How many connections a second each address may open; None: each that has no rate of its own. What Kafka has
        taken for an address and is a host's name is left out: who connects has none."""
        rates = dict[str | None, float]()
        for entity, values in self._held.items():
            kind, name = entity[0]
            if kind == IP and CONNECTION in values and (name is None or is_address(name)):
                rates[name] = values[CONNECTION]
        return rates


def _levels(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str, str]]]:
    """The entities that may say what a client may do, and who shares a bucket then; the one that wins comes first."""
    for name in (user, None):
        if client_id:
            yield ((USER, name), (CLIENT_ID, client_id)), (user, client_id)
            yield ((USER, name), (CLIENT_ID, None)), (user, client_id)
        yield ((USER, name),), (user, "")
    if client_id:
        yield ((CLIENT_ID, client_id),), ("", client_id)
        yield ((CLIENT_ID, None),), ("", client_id)


# -- what is asked for -------------------------------------------------------------------------------------------------


class ClientQuotaFilterComponent(NamedTuple):
    """A component that is asked for: `any` name, or this one, None for the default."""

    type: str
    name: str | None
    any: bool = False

    def matches(self, component: Component) -> bool:
        return self.any or component[1] == self.name


def matching(
    held: Mapping[Entity, Mapping[str, float]], wanted: Sequence[ClientQuotaFilterComponent], *, strict: bool
) -> dict[Entity, Mapping[str, float]]:
    """The entities that have all that is wanted, and with `strict` nothing else. Raises 35, 42."""
    types = [each.type for each in wanted]
    for kind in types:
        if not kind:
            raise _bad("a component has no entity type")
        if kind not in TYPES:
            raise KafkaError(errors.UNSUPPORTED_VERSION, f"there are no quotas of the entity type {shown(kind)}")
        if types.count(kind) > 1:
            raise _bad(f"the entity type {kind} is asked for twice")
    if IP in types and len(types) > 1:
        raise _bad("an ip is an entity by itself")
    return {entity: values for entity, values in held.items() if _is_wanted(entity, wanted, strict)}


def _is_wanted(entity: Entity, wanted: Sequence[ClientQuotaFilterComponent], strict: bool) -> bool:
    components = dict(entity)
    for each in wanted:
        if each.type not in components or not each.matches((each.type, components[each.type])):
            return False
    return not strict or len(wanted) == len(components)
