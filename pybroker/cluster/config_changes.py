"""What becomes of a resource's own settings when they are altered: name, operation, value in; the new settings out.

Source: Kafka's IncrementalAlterConfigs (KIP-339). Nothing is looked up here, and no value is judged but for its shape.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError

VALUE_BYTES_MAX = 32767
"""What a string of the protocol holds, and so what DescribeConfigs can tell."""


class Operation(IntEnum):
    """As the protocol numbers them; the last two are for lists only."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One setting of a resource; no value only with DELETE."""

    name: str
    operation: int
    value: str | None


def check(changes: Iterable[Change]) -> None:
    """Raises INVALID_REQUEST for what makes no sense whatever the settings are."""
    names = Counter(change.name for change in changes)
    twice = sorted(name for name, times in names.items() if times > 1)
    if twice:
        raise _bad(f"{', '.join(twice)}: each setting can be altered once in a request")
    for name, operation, value in changes:
        if operation not in Operation.__members__.values():
            raise _bad(f"{name}: there is no operation {operation}")
        if value is None and operation != Operation.DELETE:
            raise _bad(f"{name} has no value")


def altered(
    own: Mapping[str, str], changes: Iterable[Change], lists: Container[str], effective: Callable[[str], str]
) -> dict[str, str]:
    """The settings that a resource has afterwards; `effective` is the text of a list that it has not set itself.

    Raises INVALID_REQUEST as `check`, INVALID_CONFIG for an operation of lists on something else."""
    changes = list(changes)
    check(changes)
    after = dict(own)
    for name, operation, value in changes:
        if operation == Operation.DELETE:
            after.pop(name, None)
        elif operation == Operation.SET:
            after[name] = value or ""
        elif name not in lists:
            raise KafkaError(errors.INVALID_CONFIG, f"{name} is no list: it can be set or deleted, not added to")
        else:
            after[name] = _combined(own[name] if name in own else effective(name), operation, value or "")
            if len(after[name].encode()) > VALUE_BYTES_MAX:
                raise KafkaError(errors.INVALID_CONFIG, f"{name} would have more than {VALUE_BYTES_MAX} bytes")
    return after


def _combined(text: str, operation: int, value: str) -> str:
    old, given = _words(text), _words(value)
    if operation == Operation.APPEND:
        there = set(old)
        return ",".join([*old, *(word for word in given if word not in there)])
    gone = set(given)
    return ",".join(word for word in old if word not in gone)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, why)
