"""The configs of topics and brokers, and the log levels of brokers: read, and altered one by one (KIP-339)."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.client.net.connection import BrokerConnection
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m


class ResourceType(IntEnum):
    """The kind of thing that a config belongs to, by its code on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    """A topic by its name, or a broker or its loggers by its id; the broker "" is the default of all of them."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ResourceType.BROKER_LOGGER:
            return f"the loggers of broker {self.name}"
        if self.type is ResourceType.BROKER:
            return f"broker {self.name}" if self.name else "the brokers' default"
        return f"topic {self.name}"


class ConfigSource(IntEnum):
    """The origin of a config value, by its code on the wire."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


class ConfigEntry(NamedTuple):
    """One config of a topic or broker; `value` is None if it is sensitive or not set."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool


class ConfigOperation(IntEnum):
    """A change of a config, by its code on the wire; the last two are for lists only."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One change of one config; a DELETE, after which the default holds, has no value."""

    name: str
    operation: ConfigOperation
    value: str | None = None


class ConfigsAdmin(AdminBase):
    """Operations on configs."""

    def configs(self, resource: ConfigResource, names: Sequence[str] | None = None) -> list[ConfigEntry]:
        """The configs of one resource, or those of them that are named, by name."""
        asked = None if names is None else arguments.names(names, "names")
        return self._describe([_resource(resource)], asked)[resource]

    def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The configs of each of these topics, by the topic's name."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in arguments.names(names, "names")]
        return {resource.name: found for resource, found in self._describe(resources).items()} if resources else {}

    def _describe(
        self, resources: Sequence[ConfigResource], names: Sequence[str] | None = None
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """The configs of several resources, from one broker."""
        asked = m.DescribeConfigsRequest.Resources
        request = m.DescribeConfigsRequest(
            resources=[
                asked(resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names))
                for kind, name in resources
            ]
        )
        results = {
            (r.resource_type, r.resource_name): r for r in self._broker_of(resources[0]).request(request).results
        }
        found = {}
        for resource in resources:
            result = only([results[resource]] if resource in results else [], str(resource))
            raise_for(result.error_code, f"configs of {resource}", result.error_message)
            found[resource] = sorted(
                ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive) for c in result.configs
            )
        return found

    def _broker_of(self, resource: ConfigResource) -> BrokerConnection:
        """The broker to ask: any for topics and the brokers' default, else the broker whose configs they are."""
        if resource.type is ResourceType.TOPIC or (resource.type is ResourceType.BROKER and not resource.name):
            return self.cluster.any()
        if not (resource.name.isascii() and resource.name.isdigit()):
            raise KafkaError(errors.INVALID_REQUEST, f"{resource.name!r} is no id of a broker: a number is expected")
        return self.cluster.node(int(resource.name))

    def alter_configs(
        self, resource: ConfigResource, alterations: Iterable[Alteration], *, validate_only: bool = False
    ) -> None:
        """Alter configs of one resource, all of them or none; those not named stay as they are."""
        wanted = list(alterations)
        for alteration in wanted:
            if not isinstance(alteration, Alteration):
                raise TypeError(f"a change of a config is an Alteration, not {alteration!r}")
            arguments.name(alteration.name, "a config's name")
            if alteration.value is not None:
                arguments.name(alteration.value, f"the value of {alteration.name}")
        _resource(resource)
        kind = m.IncrementalAlterConfigsRequest.Resources
        configs = [kind.Configs(name=a.name, config_operation=a.operation, value=a.value) for a in wanted]
        request = m.IncrementalAlterConfigsRequest(
            resources=[kind(resource_type=resource.type, resource_name=resource.name, configs=configs)],
            validate_only=validate_only,
        )
        answer = only(self._broker_of(resource).request(request).responses, str(resource))
        raise_for(answer.error_code, f"configs of {resource}", answer.error_message)
        if not validate_only and resource.type is not ResourceType.BROKER_LOGGER:  # levels change at once
            names = [alteration.name for alteration in wanted]
            self._until_shown(lambda: _shown(wanted, self.configs(resource, names), _own_source(resource)))


def _resource(given: ConfigResource) -> ConfigResource:
    """The resource itself. TypeError if it is no ConfigResource with a str as name."""
    if not isinstance(given, ConfigResource):
        raise TypeError(f"a resource is a ConfigResource, not {given!r}")
    arguments.name(given.name, "a resource's name")
    return given


def _own_source(resource: ConfigResource) -> ConfigSource:
    """The source of a value that was set on this resource itself."""
    if resource.type is ResourceType.TOPIC:
        return ConfigSource.TOPIC
    return ConfigSource.DYNAMIC_BROKER if resource.name else ConfigSource.DYNAMIC_DEFAULT_BROKER


def _shown(wanted: Iterable[Alteration], entries: Iterable[ConfigEntry], own: ConfigSource) -> bool:
    """True if all alterations show in these entries; sensitive values cannot be compared."""
    now = {entry.name: entry for entry in entries}
    return all(_holds(alteration, now.get(alteration.name), own) for alteration in wanted)


def _holds(alteration: Alteration, entry: ConfigEntry | None, own: ConfigSource) -> bool:
    if alteration.operation is ConfigOperation.DELETE:
        return entry is None or entry.source != own
    if entry is None or entry.source != own:
        return False
    if entry.value is None:  # sensitive
        return True
    if alteration.operation is ConfigOperation.SET:
        return entry.value == alteration.value
    there, given = _words(entry.value), _words(alteration.value or "")
    return given <= there if alteration.operation is ConfigOperation.APPEND else not given & there


def _words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}
