"""A Kafka-compatible message broker: decisions in Python, bytes in `pybroker.core`."""

__version__ = "0.1.0"
