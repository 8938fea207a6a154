"""A Kafka-compatible message broker, decisions in Python and bytes in `pybroker.core`; and a client for any broker."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pybroker.client.admin import (
        BROKER_DEFAULT,
        EARLIEST,
        HIGH_WATERMARK,
        LATEST,
        AclBinding,
        AclFilter,
        Admin,
        Alteration,
        ClusterDescription,
        Committed,
        ConfigEntry,
        ConfigOperation,
        ConfigResource,
        ConfigSource,
        CreatedTopic,
        DelegationToken,
        GroupDescription,
        GroupListing,
        LogDir,
        Member,
        Replica,
        ResourceType,
        ScramUser,
    )
    from pybroker.client.aio import AsyncProducer
    from pybroker.client.aio_consumer import AsyncConsumer
    from pybroker.client.arrays import ByteArray, RecordArrays
    from pybroker.client.consumer import Consumer, OffsetAndMetadata, OffsetAndTimestamp, RebalanceListener
    from pybroker.client.damaged import DamagedRecords
    from pybroker.client.logfiles import read_log
    from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
    from pybroker.client.producer import Producer
    from pybroker.client.segments import read_index
    from pybroker.client.settings import ConsumerSettings, ProducerSettings
    from pybroker.config.settings import ConfigError
    from pybroker.core import Delivery, LogError, Record, RecordMetadata
    from pybroker.errors import KafkaError
    from pybroker.model import TopicPartition

_NAMES = {
    "pybroker.client.admin": (
        "AclBinding AclFilter Admin Alteration BROKER_DEFAULT ClientQuotaFilterComponent ClusterDescription Committed"
        " ConfigEntry ConfigOperation"
        " ConfigResource ConfigSource CreatedTopic DelegationToken EARLIEST GroupDescription GroupListing"
        " HIGH_WATERMARK LATEST LogDir Member Replica ResourceType ScramUser"
    ),
    "pybroker.client.aio": "AsyncProducer",
    "pybroker.client.aio_consumer": "AsyncConsumer",
    "pybroker.client.arrays": "ByteArray RecordArrays",
    "pybroker.client.consumer": "Consumer OffsetAndMetadata OffsetAndTimestamp RebalanceListener",
    "pybroker.client.damaged": "DamagedRecords",
    "pybroker.client.logfiles": "read_log",
    "pybroker.client.metadata": "Node PartitionInfo TopicInfo",
    "pybroker.client.producer": "Producer",
    "pybroker.client.segments": "read_index",
    "pybroker.client.settings": "ConsumerSettings ProducerSettings",
    "pybroker.config.settings": "ConfigError",
    "pybroker.core": "Delivery LogError Record RecordMetadata",
    "pybroker.errors": "KafkaError",
    "pybroker.model": "TopicPartition",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BROKER_DEFAULT",
    "EARLIEST",
    "HIGH_WATERMARK",
    "LATEST",
    "AclBinding",
    "AclFilter",
    "Admin",
    "Alteration",
    "AsyncConsumer",
    "AsyncProducer",
    "ByteArray",
    "ClientQuotaFilterComponent",
    "ClusterDescription",
    "Committed",
    "ConfigEntry",
    "ConfigError",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "ConsumerSettings",
    "CreatedTopic",
    "DamagedRecords",
    "DelegationToken",
    "Delivery",
    "GroupDescription",
    "GroupListing",
    "KafkaError",
    "LogDir",
    "LogError",
    "Member",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Producer",
    "ProducerSettings",
    "RebalanceListener",
    "Record",
    "RecordArrays",
    "RecordMetadata",
    "Replica",
    "ResourceType",
    "ScramUser",
    "TopicInfo",
    "TopicPartition",
    "__version__",
    "read_index",
    "read_log",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for: the command line starts without the client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
