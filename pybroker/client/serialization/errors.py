"""The error of a record whose key or value cannot be deserialized."""

from typing import Literal

from pybroker import errors
from pybroker.core import Record
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

Field = Literal["key", "value"]


class DeserializationError(KafkaError):
    """A key or value that cannot be deserialized. `seek(error.partition, error.next_offset)` goes on without it.

    record: the record with key and value as bytes. field: the one that failed. reason: what its deserializer raised."""

    def __init__(self, record: Record, field: Field, reason: str) -> None:
        self.record, self.field, self.reason = record, field, reason
        to = f"seek to offset {record.offset + 1} to go on without"
        where = f"{self.partition}: the {field} of offset {record.offset}"
        super().__init__(errors.INVALID_RECORD, f"{where} cannot be deserialized: {reason}; {to}")

    def __reduce__(self) -> tuple[type, tuple[Record, Field, str]]:
        return DeserializationError, (self.record, self.field, self.reason)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def next_offset(self) -> int:
        """The offset to seek to, past the record."""
        return self.record.offset + 1
