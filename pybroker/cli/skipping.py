"""Damage that `pybroker consume` meets: the command ends there and says how to go on, or goes on and says so."""

import contextlib
from typing import Final

import click

from pybroker.cli.main import Failure
from pybroker.cli.reading import Commits
from pybroker.client.consumer import Consumer
from pybroker.client.damaged import DamagedRecords, offsets
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

OPTION: Final = "--skip-damaged"


class Skips:
    """Offsets left out because they cannot be read; neighbours become one range, which is printed once it is over."""

    def __init__(self, consumer: Consumer, commits: Commits | None, *, allowed: bool) -> None:
        self._consumer = consumer
        self._commits = commits
        self._allowed = allowed
        self._skipped: dict[TopicPartition, tuple[int, int]] = {}
        """The first offset of a range that was not said yet, and the one behind it."""

    def meet(self, damage: DamagedRecords) -> None:
        """Have the consumer go on behind the damage. Failure where that was not asked for."""
        if not self._allowed:
            raise Failure(self._sentence(damage))
        partition, first = damage.partition, damage.offset
        beyond = first + 1 if damage.next_offset is None else damage.next_offset
        with contextlib.suppress(ValueError):  # its group gave it to another member
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
            return f"{said}; {OPTION} tries those behind it, one by one"
        if damage.next_offset >= self._end(damage.partition):
            return f"{said}; none follows that can be read: {OPTION} waits for what comes behind"
        return f"{said}; {OPTION} goes on with offset {damage.next_offset}"

    def _end(self, partition: TopicPartition) -> float:
        try:
            return self._consumer.end_offsets([partition])[partition]
        except KafkaError:
            return float("inf")

    def say(self, partition: TopicPartition | None = None) -> None:
        """Print what was left out, of one partition or of all."""
        for place in list(self._skipped) if partition is None else [partition]:
            if place in self._skipped:
                first, beyond = self._skipped.pop(place)
                count, which = beyond - first, offsets(first, beyond - 1)
                click.echo(f"pybroker: {place}: {which} skipped, {count:,} that cannot be read", err=True)
