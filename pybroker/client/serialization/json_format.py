"""Keys and values as JSON in UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Loaded = Any
"""A value of a type that only its data decides."""


class Json:
    """Serializes with `json.dumps` and deserializes with `json.loads`: `Producer(value_serializer=Json())`.

    dumps and loads may be those of another library, like orjson.dumps, which returns bytes."""

    def __init__(
        self,
        dumps: Callable[[object], bytes | str] | None = None,
        loads: Callable[[bytes], object] | None = None,
    ) -> None:
        self._dumps = _compact if dumps is None else dumps
        self._loads = json.loads if loads is None else loads

    def __repr__(self) -> str:
        return "Json()"

    def serialize(self, topic: str, value: object, /) -> bytes | str:
        """The value as JSON. TypeError for a value that has none."""
        return self._dumps(value)

    def deserialize(self, topic: str, data: bytes, /) -> Loaded:
        """The value of a JSON text. ValueError if it is none."""
        return self._loads(data)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
