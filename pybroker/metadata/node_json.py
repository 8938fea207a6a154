"""JSON of nodes in the coordination store: numbers, lists of brokers and texts, each checked before it is believed."""

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from pybroker.config.settings import INT_MAX
from pybroker.coordination.store import StoreDamaged

P = ParamSpec("P")
T = TypeVar("T")

DAMAGED = "a node of the coordination store is damaged: "
HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""A JSON escape that may be an unpaired surrogate."""
NUMBER = re.compile(r"-?[0-9]{1,19}")


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def sound(load: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that loads a node: it raises StoreDamaged for malformed data."""

    @functools.wraps(load)
    def checked(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return load(*arguments, **named)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            what = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise StoreDamaged(detail=f"{DAMAGED}{what}") from None

    return checked


def load_object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"{data[:100]!r} is not a JSON object")
    if HALF_CHARACTER.search(data):
        json.dumps(found, ensure_ascii=False).encode()  # ValueError for an unpaired surrogate
    return found


def number_of(text: str, least: int, most: int) -> int:
    """A number in a range, from its text."""
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"{text[:100]!r} is not a number from {least} to {most}")
    return int(text)


def int32(found: object, least: int, most: int = INT_MAX) -> int:
    """An int32 in a range. Checked here, or it would fail only when a request is encoded."""
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{repr(found)[:100]} is not a number from {least} to {most}")
    return found


def broker_list(found: object) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise ValueError(f"{repr(found)[:100]} is not a list of brokers")
    brokers = tuple(int32(each, 0) for each in found)
    if len(set(brokers)) < len(brokers):
        raise ValueError(f"a broker is named twice in {brokers[:100]}")
    return brokers


def replica_list(found: object) -> tuple[int, ...]:
    brokers = broker_list(found)
    if not brokers:
        raise ValueError("a partition has no replicas")
    return brokers


def index_of(text: str) -> int:
    """A partition number from its text."""
    if len(text) > 10 or not text.isdecimal() or str(int(text)) != text:
        raise ValueError(f"{text[:100]!r} is not a partition number")
    return int(text)


def texts_of(found: Mapping[str, object]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError("a value in it is not a string")
    return {key: str(value) for key, value in found.items()}
