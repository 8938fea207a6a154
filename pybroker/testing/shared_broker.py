"""One broker for all tests of a session; each test uses its own names in it."""

from collections.abc import Mapping
from typing import Any

from pybroker.testing import records
from pybroker.testing.clients import Config
from pybroker.testing.handle import BrokerHandle
from pybroker.testing.records import Content, Record, StoredRecord
from pybroker.testing.tracebacks import hidden


class SharedBroker:
    """A view of a broker for one test: topics get `prefix`, and the test cannot disturb the others.

    `create_topic`, `produce` and `records` take names without the prefix; clients use `topic(name)` and `group(name)`.
    """

    def __init__(self, handle: BrokerHandle, prefix: str) -> None:
        self._handle = handle
        self.prefix = prefix
        self.bootstrap_servers = handle.bootstrap_servers

    def topic(self, name: str) -> str:
        """The topic's name in the broker."""
        return f"{self.prefix}{name}"

    def group(self, name: str) -> str:
        """The consumer group's name in the broker."""
        return f"{self.prefix}{name}"

    @hidden
    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> str:
        """Create a topic; return its name in the broker. KafkaError if the test has created it already."""
        return self._handle.create_topic(self.topic(name), partitions, config)

    @hidden
    def produce(
        self, topic: str, *what: Record | Content, key: Content = None, partition: int = 0
    ) -> list[StoredRecord]:
        """See BrokerHandle.produce."""
        return self._handle.produce(self.topic(topic), *what, key=key, partition=partition)

    @hidden
    def records(
        self, topic: str, *, partition: int | None = None, count: int = 0, timeout_s: float = records.TIMEOUT_S
    ) -> list[StoredRecord]:
        """See BrokerHandle.records."""
        return self._handle.records(self.topic(topic), partition=partition, count=count, timeout_s=timeout_s)

    def confluent_config(self, group: str | None = None, **overrides: Any) -> Config:
        """See BrokerHandle.confluent_config; pass the group without the prefix."""
        return self._handle.confluent_config(self._in_broker(group), **overrides)

    def kafka_python_config(self, group: str | None = None, **overrides: Any) -> Config:
        """See BrokerHandle.kafka_python_config; pass the group without the prefix."""
        return self._handle.kafka_python_config(self._in_broker(group), **overrides)

    def aiokafka_config(self, group: str | None = None, **overrides: Any) -> Config:
        """See BrokerHandle.aiokafka_config; pass the group without the prefix."""
        return self._handle.aiokafka_config(self._in_broker(group), **overrides)

    def pybroker_config(self, group: str | None = None, **overrides: Any) -> Config:
        """See BrokerHandle.pybroker_config; pass the group without the prefix."""
        return self._handle.pybroker_config(self._in_broker(group), **overrides)

    def java_config(self, group: str | None = None, **overrides: Any) -> Config:
        """See BrokerHandle.java_config; pass the group without the prefix."""
        return self._handle.java_config(self._in_broker(group), **overrides)

    def _in_broker(self, group: str | None) -> str | None:
        return None if group is None else self.group(group)
