"""The options for where reading starts, and the offset that they mean in each partition."""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

import click

from pybroker.cli.main import Failure
from pybroker.cli.output import Options
from pybroker.client.consuming.consumer import Consumer
from pybroker.model import TopicPartition

_NUMBER: Final = re.compile(r"-?\d{1,18}")


class Start(NamedTuple):
    """A start: "earliest", "latest", "offset" (`value` itself), "back" (this many before the end), "time"."""

    kind: str
    value: int = 0

    @property
    def reset_policy(self) -> str:
        """The reset policy, for a reader that retention has overtaken."""
        return "latest" if self.kind == "latest" else "earliest"


def offset(text: str) -> Start:
    """Parse --offset: the type of the option."""
    if text in ("earliest", "latest"):
        return Start(text)
    if not _NUMBER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is neither earliest nor latest nor a number")
    number = int(text)
    return Start("back", -number) if text.startswith("-") else Start("offset", number)


def chosen(how: Options) -> Start:
    """Return the start that the options choose. UsageError if two contradict each other."""
    given = {
        "--offset": how["offset"],
        "--from-beginning": Start("earliest") if how["from_beginning"] else None,
        "--at": None if how["at"] is None else Start("time", how["at"]),
        "--last": None if how["last"] is None else Start("back", how["last"]),
    }
    asked = [start for start in given.values() if start is not None]
    if len(asked) > 1:
        raise click.UsageError(f"{', '.join(given)} exclude each other: give one start")
    return asked[0] if asked else Start("earliest" if how["exit_at_end"] else "latest")


def seek(consumer: Consumer, start: Start, partitions: Collection[TopicPartition]) -> None:
    """Move a consumer with assigned partitions to the start. Failure for an offset out of a partition's range."""
    if start.kind == "earliest":
        consumer.seek_to_beginning()
    elif start.kind == "latest":
        consumer.seek_to_end()
    elif start.kind == "time":
        found = consumer.offsets_for_times(dict.fromkeys(partitions, start.value))
        for partition, there in found.items():
            if there is None:
                consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, there.offset)
    else:
        first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, _offset(start, partition, first[partition], end[partition]))


def _offset(start: Start, partition: TopicPartition, first: int, end: int) -> int:
    if start.kind == "back":
        return max(first, end - start.value)
    if not first <= start.value <= end:
        raise Failure(f"offset {start.value} is out of range: {partition} holds {first} to {end}")
    return start.value
