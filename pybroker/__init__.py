"""A Kafka-compatible message broker, decisions in Python and bytes in `pybroker.core`; and a client for any broker."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pybroker.client.admin import Admin
    from pybroker.client.aio import AsyncConsumer, AsyncProducer
    from pybroker.client.consumer import Consumer
    from pybroker.client.logfiles import read_log
    from pybroker.client.producer import Producer
    from pybroker.client.segments import read_index
    from pybroker.errors import KafkaError
    from pybroker.model import TopicPartition

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "KafkaError",
    "Producer",
    "TopicPartition",
    "__version__",
    "read_index",
    "read_log",
]

_HOMES = {
    "Admin": "pybroker.client.admin",
    "AsyncConsumer": "pybroker.client.aio",
    "AsyncProducer": "pybroker.client.aio",
    "Consumer": "pybroker.client.consumer",
    "KafkaError": "pybroker.errors",
    "Producer": "pybroker.client.producer",
    "TopicPartition": "pybroker.model",
    "read_index": "pybroker.client.segments",
    "read_log": "pybroker.client.logfiles",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for: the command line starts without the client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
