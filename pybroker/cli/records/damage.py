"""Damage that `pybroker consume` meets: stop there and say how to go on, or skip it and report it."""

import contextlib
from typing import Final

import click

from pybroker.cli.main import Failure
from pybroker.cli.records.reading import WrittenCommits
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.damaged_records import DamagedRecords, offset_range
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

OPTION: Final = "--skip-damaged"


class Skips:
    """Offsets skipped because they cannot be read; adjacent ones become one range, printed once it is complete."""

    def __init__(self, consumer: Consumer, commits: WrittenCommits | None, *, allowed: bool) -> None:
        self._consumer = consumer
        self._commits = commits
        self._allowed = allowed
        self._skipped: dict[TopicPartition, tuple[int, int]] = {}
        """The range not yet printed: its first offset, and the offset after it."""

    def meet(self, damage: DamagedRecords) -> None:
        """Have the consumer skip the damage. Failure unless skipping is allowed."""
        if not self._allowed:
            raise Failure(self._sentence(damage))
        partition, first = damage.partition, damage.offset
        beyond = first + 1 if damage.next_offset is None else damage.next_offset
        with contextlib.suppress(ValueError):  # the group has moved the partition to another member
            self._consumer.seek(partition, beyond)
        if self._commits is not None:
            self._commits.skipped(partition, beyond)
        before, end = self._skipped.get(partition, (first, first))
        if end != first:
            self.say(partition)
            before = first
        self._skipped[partition] = before, beyond

    def _sentence(self, damage: DamagedRecords) -> str:
        said = f"{damage.partition}: {damage.what} cannot be read: {damage.reason}"
        if damage.next_offset is None:
            return f"{said}; {OPTION} tries the offsets after it, one by one"
        if damage.next_offset >= self._end(damage.partition):
            return f"{said}; no readable record follows: {OPTION} waits for new ones"
        return f"{said}; {OPTION} goes on with offset {damage.next_offset}"

    def _end(self, partition: TopicPartition) -> float:
        try:
            return self._consumer.end_offsets([partition])[partition]
        except KafkaError:
            return float("inf")

    def say(self, partition: TopicPartition | None = None) -> None:
        """Print the skipped offsets of one partition, or of all."""
        for place in list(self._skipped) if partition is None else [partition]:
            if place in self._skipped:
                first, beyond = self._skipped.pop(place)
                count, which = beyond - first, offset_range(first, beyond - 1)
                click.echo(f"pybroker: {place}: skipped {which}, {count:,} unreadable", err=True)
