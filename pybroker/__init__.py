"""A Kafka-compatible message broker, with its data path in `pybroker.core`, and a client for any Kafka broker."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pybroker.avro.registry_client import RegisteredSchema
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
        HangingTransaction,
        LogDir,
        Member,
        PartitionProducer,
        PartitionReassignment,
        Replica,
        ResourceType,
        ScramUser,
        TransactionDescription,
        TransactionListing,
    )
    from pybroker.client.aio.admin import AsyncAdmin
    from pybroker.client.aio.consumer import AsyncConsumer
    from pybroker.client.aio.producer import AsyncProducer
    from pybroker.client.arguments import IllegalStateError
    from pybroker.client.columns.arrays import ByteArray, RecordArrays
    from pybroker.client.columns.read_log import read_log
    from pybroker.client.columns.segments import read_index
    from pybroker.client.consuming.base import OffsetAndTimestamp
    from pybroker.client.consuming.consumer import Consumer
    from pybroker.client.consuming.damaged_records import DamagedRecords
    from pybroker.client.consuming.group import RebalanceListener
    from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
    from pybroker.client.producing.producer import Producer
    from pybroker.client.serialization.avro import Avro
    from pybroker.client.serialization.errors import DeserializationError
    from pybroker.client.serialization.json_format import Json
    from pybroker.client.serialization.registry import RegistryError, SchemaRegistry
    from pybroker.client.settings import ConsumerSettings, ProducerSettings
    from pybroker.config.settings import ConfigError
    from pybroker.core import Delivery, LogError, Record, RecordMetadata
    from pybroker.errors import KafkaError
    from pybroker.frames.bad_records import BadRecords, BadRecordsWarning
    from pybroker.frames.polars_scan import scan_polars
    from pybroker.frames.reading import read_topic, scan_topic
    from pybroker.frames.sources import ReadSettings
    from pybroker.frames.writing import write_topic
    from pybroker.model import TopicPartition

_NAMES = {
    "pybroker.avro.registry_client": "RegisteredSchema",
    "pybroker.client.admin": (
        "AclBinding AclFilter Admin Alteration BROKER_DEFAULT ClientQuotaFilterComponent ClusterDescription Committed"
        " ConfigEntry ConfigOperation"
        " ConfigResource ConfigSource CreatedTopic DelegationToken EARLIEST GroupDescription GroupListing"
        " HIGH_WATERMARK HangingTransaction LATEST LogDir Member PartitionProducer PartitionReassignment Replica"
        " ResourceType ScramUser TransactionDescription TransactionListing"
    ),
    "pybroker.client.aio.admin": "AsyncAdmin",
    "pybroker.client.aio.producer": "AsyncProducer",
    "pybroker.client.aio.consumer": "AsyncConsumer",
    "pybroker.client.arguments": "IllegalStateError",
    "pybroker.client.columns.arrays": "ByteArray RecordArrays",
    "pybroker.client.consuming.base": "OffsetAndTimestamp",
    "pybroker.client.net.group_offsets": "ConsumerGroupMetadata OffsetAndMetadata",
    "pybroker.client.consuming.consumer": "Consumer",
    "pybroker.client.consuming.group": "RebalanceListener",
    "pybroker.client.consuming.damaged_records": "DamagedRecords",
    "pybroker.client.columns.read_log": "read_log",
    "pybroker.client.net.metadata": "Node PartitionInfo TopicInfo",
    "pybroker.client.producing.producer": "Producer",
    "pybroker.client.columns.segments": "read_index",
    "pybroker.client.serialization.avro": "Avro",
    "pybroker.client.serialization.errors": "DeserializationError",
    "pybroker.client.serialization.json_format": "Json",
    "pybroker.client.serialization.registry": "RegistryError SchemaRegistry",
    "pybroker.client.settings": "ConsumerSettings ProducerSettings",
    "pybroker.config.settings": "ConfigError",
    "pybroker.core": "Delivery LogError Record RecordMetadata",
    "pybroker.errors": "KafkaError",
    "pybroker.frames.bad_records": "BadRecords BadRecordsWarning",
    "pybroker.frames.polars_scan": "scan_polars",
    "pybroker.frames.reading": "read_topic scan_topic",
    "pybroker.frames.sources": "ReadSettings",
    "pybroker.frames.writing": "write_topic",
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
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Avro",
    "BadRecords",
    "BadRecordsWarning",
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
    "ConsumerGroupMetadata",
    "ConsumerSettings",
    "CreatedTopic",
    "DamagedRecords",
    "DelegationToken",
    "Delivery",
    "DeserializationError",
    "GroupDescription",
    "GroupListing",
    "HangingTransaction",
    "IllegalStateError",
    "Json",
    "KafkaError",
    "LogDir",
    "LogError",
    "Member",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "PartitionProducer",
    "PartitionReassignment",
    "Producer",
    "ProducerSettings",
    "ReadSettings",
    "RebalanceListener",
    "Record",
    "RecordArrays",
    "RecordMetadata",
    "RegisteredSchema",
    "RegistryError",
    "Replica",
    "ResourceType",
    "SchemaRegistry",
    "ScramUser",
    "TopicInfo",
    "TopicPartition",
    "TransactionDescription",
    "TransactionListing",
    "__version__",
    "read_index",
    "read_log",
    "read_topic",
    "scan_polars",
    "scan_topic",
    "write_topic",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import names at their first use, so that the command line starts without importing the client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def _instead(name: str) -> str:
    """Our name for a class of another client library, as the end of a sentence."""
    if not name[:1].isupper():  # modules and dunder names are looked for here too
        return ""
    from pybroker.client.foreign import CLASSES

    return f": here it is {CLASSES[name]}" if name in CLASSES else ""
