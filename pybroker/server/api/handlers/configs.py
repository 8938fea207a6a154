"""DescribeConfigs: the settings of topics and of this broker, with source and documentation, and its log levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pybroker import errors
from pybroker.config import BrokerConfig, DescribedConfig, TopicConfig
from pybroker.decisions.caller import Call
from pybroker.decisions.config_changes import VALUE_BYTES_MAX
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.metadata.broker_loggers import BrokerLoggers
from pybroker.protocol import messages as m

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8


class DescribeConfigs:
    def __init__(
        self,
        metadata: MetadataCache,
        topic_configs: ConfigRepository,
        config: BrokerConfig,
        broker_id: int,
        loggers: BrokerLoggers,
    ) -> None:
        self._metadata = metadata
        self._topic_configs = topic_configs
        self._config = config
        self._broker_id = broker_id
        self._loggers = loggers

    def __call__(self, request: m.DescribeConfigsRequest, call: Call) -> m.DescribeConfigsResponse:
        kind = m.DescribeConfigsResponse.Results
        results = []
        named = Counter((r.resource_type, r.resource_name) for r in request.resources)
        for resource in request.resources:
            result = kind(resource_type=resource.resource_type, resource_name=resource.resource_name)
            try:
                times = named[resource.resource_type, resource.resource_name]
                if times > 1:
                    raise KafkaError(errors.INVALID_REQUEST, f"the request names this resource {times} times")
                entries = self._entries(resource.resource_type, resource.resource_name)
                wanted = _wanted(entries, resource.configuration_keys)
                result.configs = [_show(entry, request) for entry in wanted]
            except KafkaError as problem:
                result.error_code, result.error_message = problem.code, problem.message
            results.append(result)
        return m.DescribeConfigsResponse(results=results)

    def _entries(self, kind: int, name: str) -> list[DescribedConfig]:
        if kind == TOPIC:
            check_name(name)
            if self._metadata.image.topic(name) is None:
                self._metadata.check_complete()
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
            return TopicConfig(self._config, self._topic_configs.topic(name), stored=True).entries()
        if kind == BROKER:
            if name == "":  # the cluster-wide defaults
                return self._config.default_entries()
            if name != str(self._broker_id):
                words = f"this is broker {self._broker_id}: ask broker {name!r} for its settings"
                raise KafkaError(errors.INVALID_REQUEST, words)
            return self._config.entries()
        if kind == BROKER_LOGGER:
            return self._loggers.entries(name)
        words = f"resource type {kind} has no settings: use 2 (topic), 4 (broker) or 8 (broker logger)"
        raise KafkaError(errors.INVALID_REQUEST, words)


def _wanted(entries: Iterable[DescribedConfig], keys: Sequence[str] | None) -> list[DescribedConfig]:
    names = set(keys or ())
    return [entry for entry in entries if not names or entry.name in names]


def _show(entry: DescribedConfig, request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse.Results.Configs:
    """Return one setting of a response. Raises INVALID_CONFIG for a stored value that is too long for a response."""
    kind = m.DescribeConfigsResponse.Results.Configs
    if entry.value is not None and len(entry.value.encode()) > VALUE_BYTES_MAX:
        words = f"the stored value of {entry.name} has more than {VALUE_BYTES_MAX} bytes: set a shorter one"
        raise KafkaError(errors.INVALID_CONFIG, words)
    synonyms = entry.synonyms if request.include_synonyms else ()
    return kind(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
        synonyms=[kind.Synonyms(name=s.name, value=s.value, source=int(s.source)) for s in synonyms],
        config_type=int(entry.type),
        documentation=entry.documentation if request.include_documentation else None,
    )


def failed(request: m.DescribeConfigsRequest, code: int, message: str) -> m.DescribeConfigsResponse:
    kind = m.DescribeConfigsResponse.Results
    return m.DescribeConfigsResponse(
        results=[
            kind(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )
