"""Client quotas by entity (KIP-13, 55, 124, 257, 546, 599), and the one that applies to a client.

An entity has one or two components, each a type with a name, or with None for the default of that type:

    user + client-id     user     client-id     ip

For a client the first of eight levels with a quota applies; quotas do not add up. The level determines which clients
share a bucket: one bucket per user and client id, per user, or per client id. An empty client id matches no level with
client ids (KAFKA-13341).
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
"""The components in the order of TYPES."""


class QuotaKind(NamedTuple):
    """A kind of quota: the largest value, whether it may have a fraction, and its unit."""

    most: float
    fraction: bool
    unit: str


OF_CLIENTS: Final[Mapping[str, QuotaKind]] = {
    PRODUCER: QuotaKind(2.0**63, False, "bytes a second of Produce requests"),
    CONSUMER: QuotaKind(2.0**63, False, "bytes a second of Fetch answers"),
    REQUEST: QuotaKind(1e12, True, "percent of a thread's time"),
    MUTATION: QuotaKind(1e12, True, "partitions created or deleted a second"),
}
OF_IPS: Final[Mapping[str, QuotaKind]] = {CONNECTION: QuotaKind(2.0**31 - 1, False, "connections a second")}


class Bucket(NamedTuple):
    """A bucket that clients share, and its limit; an empty user or client id stands for all."""

    user: str
    client_id: str
    limit: float


def entity_of(components: Iterable[Component]) -> Entity:
    """The entity of these components. Raises INVALID_REQUEST for an invalid combination."""
    found: dict[str, str | None] = {}
    for kind, name in components:
        if kind not in TYPES:
            raise _bad(f"there are no quotas of the entity type {shown(kind)}: there are {', '.join(TYPES)}")
        if kind in found:
            raise _bad(f"the entity has more than one {kind}")
        found[kind] = _checked(kind, name)
    if not found:
        raise _bad("the entity is empty: it needs a user, a client-id or an ip")
    if IP in found and len(found) > 1:
        raise _bad("an ip cannot be combined with a user or a client-id")
    return tuple((kind, found[kind]) for kind in TYPES if kind in found)


def _checked(kind: str, name: str | None) -> str | None:
    if name is None:
        return None
    if not name:
        raise _bad(f"the {kind} has an empty name: use null for the default of all")
    if len(name) > NAME_MAX:
        raise _bad(f"the {kind} has a name of {len(name)} characters; allowed are {NAME_MAX}")
    if name in (".", ".."):
        raise _bad(f"ZooKeeper does not allow {name!r} as the name of a {kind}")
    return name


def keys_of(entity: Entity) -> Mapping[str, QuotaKind]:
    return OF_IPS if entity[0][0] == IP else OF_CLIENTS


def text_of(entity: Entity, key: str, value: float) -> str:
    """The text of a value in the store. Raises INVALID_REQUEST for a quota or a value that the entity cannot have."""
    kind = keys_of(entity).get(key)
    if kind is None:
        raise _bad(f"{shown(key)} is not a quota of this entity: allowed are {', '.join(keys_of(entity))}")
    if not math.isfinite(value) or not 0 <= value < kind.most:
        raise _bad(f"{key} is {value}: it takes a number of {kind.unit}, at least 0")
    if kind.fraction:
        return repr(float(value))
    if abs(value - round(value)) > 1e-6:
        raise _bad(f"{key} is {value}: it takes a whole number")
    return str(round(value))


def values_of(entity: Entity, config: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """The quotas in an entity's settings, and the names of unreadable ones, which are not applied."""
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
    """{entity: {quota: value}}, updated entity by entity; finds the bucket of a client."""

    def __init__(self) -> None:
        self._held: dict[Entity, dict[str, float]] = {}
        self._changes = 0
        self.number = 0
        """The version of the quotas: another after each change, 0 while there is none for clients."""
        self.on_changed: list[Callable[[], object]] = []
        """Called after each change of quotas of clients or addresses."""

    def all(self) -> Mapping[Entity, Mapping[str, float]]:
        return self._held

    def take(self, entity: Entity, config: Mapping[str, str]) -> list[str]:
        """Apply `config`, all the settings that an entity has now. Return the unreadable quotas, which are not applied.
        """
        values, unreadable = values_of(entity, config)
        if values != self._held.get(entity, {}):
            if values:
                self._held[entity] = values
            else:
                del self._held[entity]
            self._tell()
        return unreadable

    def keep(self, entities: Iterable[Entity]) -> None:
        """Forget all other entities."""
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
        """The bucket of a client for a quota; None if it has none."""
        for entity, shared_by in _levels(user, client_id):
            limit = self._held.get(entity, {}).get(key)
            if limit is not None:
                return Bucket(*shared_by, limit)
        return None

    def connection_rates(self) -> dict[str | None, float]:
        """The connections per second allowed to each address; None stands for addresses without a rate of their own.
        Host names, which Kafka accepts as addresses, are left out: a connection has no host name."""
        rates = dict[str | None, float]()
        for entity, values in self._held.items():
            kind, name = entity[0]
            if kind == IP and CONNECTION in values and (name is None or is_address(name)):
                rates[name] = values[CONNECTION]
        return rates


def _levels(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str, str]]]:
    """The entities that can limit a client, each with the (user, client id) of its bucket; highest precedence first."""
    for name in (user, None):
        if client_id:
            yield ((USER, name), (CLIENT_ID, client_id)), (user, client_id)
            yield ((USER, name), (CLIENT_ID, None)), (user, client_id)
        yield ((USER, name),), (user, "")
    if client_id:
        yield ((CLIENT_ID, client_id),), ("", client_id)
        yield ((CLIENT_ID, None),), ("", client_id)


# -- filters -----------------------------------------------------------------------------------------------------------


class ClientQuotaFilterComponent(NamedTuple):
    """A filter of components: `any` name, or this one, None for the default."""

    type: str
    name: str | None
    any: bool = False

    def matches(self, component: Component) -> bool:
        return self.any or component[1] == self.name


def matching(
    held: Mapping[Entity, Mapping[str, float]], wanted: Sequence[ClientQuotaFilterComponent], *, strict: bool
) -> dict[Entity, Mapping[str, float]]:
    """The entities that match all filters, and with `strict` have no other components. Raises INVALID_REQUEST,
    UNSUPPORTED_VERSION."""
    types = [each.type for each in wanted]
    for kind in types:
        if not kind:
            raise _bad("a component has no entity type")
        if kind not in TYPES:
            raise KafkaError(errors.UNSUPPORTED_VERSION, f"there are no quotas of the entity type {shown(kind)}")
        if types.count(kind) > 1:
            raise _bad(f"the entity type {kind} is in the filter twice")
    if IP in types and len(types) > 1:
        raise _bad("an ip cannot be combined with a user or a client-id")
    return {entity: values for entity, values in held.items() if _is_wanted(entity, wanted, strict)}


def _is_wanted(entity: Entity, wanted: Sequence[ClientQuotaFilterComponent], strict: bool) -> bool:
    components = dict(entity)
    for each in wanted:
        if each.type not in components or not each.matches((each.type, components[each.type])):
            return False
    return not strict or len(wanted) == len(components)
