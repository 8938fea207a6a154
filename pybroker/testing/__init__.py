"""A real broker for tests: on a real socket, in this process or in one of its own, gone without a trace afterwards.

    with pybroker.testing.broker() as broker:
        producer = confluent_kafka.Producer(broker.confluent_config())

pytest has it as the fixture `pybroker`; docs/testing.md tells the rest. Importing this loads nothing of the broker.
"""

from pybroker.testing.cluster import ClusterHandle, cluster
from pybroker.testing.faults import Fault, Faults
from pybroker.testing.handle import AsyncBroker, BrokerHandle, Mode, async_broker, broker
from pybroker.testing.life import BrokerFailed
from pybroker.testing.records import Record, StoredRecord
from pybroker.testing.shared import SharedBroker

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
