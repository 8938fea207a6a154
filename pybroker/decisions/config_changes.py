"""Applies alterations to a resource's own settings: (name, operation, value) in, the new settings out.

Source: Kafka's IncrementalAlterConfigs (KIP-339). The settings' types and allowed values are not checked here.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError

VALUE_BYTES_MAX = 32767
"""The longest string of the protocol, and so of DescribeConfigs."""


class AlterOperation(IntEnum):
    """The protocol's numbers of operations; the last two are only for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one setting; the value is None only with DELETE."""

    name: str
    operation: int
    value: str | None


def check(changes: Iterable[ConfigChange]) -> None:
    """Raise INVALID_REQUEST for duplicate names, unknown operations and missing values."""
    names = Counter(change.name for change in changes)
    twice = sorted(name for name, times in names.items() if times > 1)
    if twice:
        raise _bad(f"{', '.join(twice)}: each setting can be altered only once in a request")
    for name, operation, value in changes:
        if operation not in AlterOperation.__members__.values():
            raise _bad(f"{name}: unknown operation {operation}")
        if value is None and operation != AlterOperation.DELETE:
            raise _bad(f"{name} has no value")


def altered(
    own: Mapping[str, str], changes: Iterable[ConfigChange], lists: Container[str], effective: Callable[[str], str]
) -> dict[str, str]:
    """The resource's settings after the changes; `effective` returns the text of a list that the resource has not set.

    Raises INVALID_REQUEST as `check`, INVALID_CONFIG for a list operation on another type."""
    changes = list(changes)
    check(changes)
    after = dict(own)
    for name, operation, value in changes:
        if operation == AlterOperation.DELETE:
            after.pop(name, None)
        elif operation == AlterOperation.SET:
            after[name] = value or ""
        elif name not in lists:
            raise KafkaError(errors.INVALID_CONFIG, f"{name} is not a list: it can only be set or deleted")
        else:
            after[name] = _combined(own[name] if name in own else effective(name), operation, value or "")
            if len(after[name].encode()) > VALUE_BYTES_MAX:
                raise KafkaError(errors.INVALID_CONFIG, f"{name} would have more than {VALUE_BYTES_MAX} bytes")
    return after


def _combined(text: str, operation: int, value: str) -> str:
    old, given = _words(text), _words(value)
    if operation == AlterOperation.APPEND:
        there = set(old)
        return ",".join([*old, *(word for word in given if word not in there)])
    gone = set(given)
    return ",".join(word for word in old if word not in gone)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, why)
