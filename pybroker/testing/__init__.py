"""A real broker for tests: on a real socket, in this process or in one of its own, removed completely afterwards.

    with pybroker.testing.broker() as broker:
        producer = confluent_kafka.Producer(broker.confluent_config())

The pytest fixture is `pybroker`; see docs/testing.md. Importing this module loads nothing of the broker.
"""

from pybroker.testing.cluster import ClusterHandle, cluster
from pybroker.testing.faults import Fault, Faults
from pybroker.testing.handle import AsyncBroker, BrokerHandle, Mode, async_broker, broker
from pybroker.testing.lifecycle import BrokerFailed
from pybroker.testing.records import Record, StoredRecord
from pybroker.testing.shared_broker import SharedBroker

__all__ = [
    "AsyncBroker",
    "BrokerFailed",
    "BrokerHandle",
    "ClusterHandle",
    "Fault",
    "Faults",
    "Mode",
    "Record",
    "SharedBroker",
    "StoredRecord",
    "async_broker",
    "broker",
    "cluster",
]
