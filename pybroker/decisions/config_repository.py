"""The topics' own settings known to this broker, for all code that describes or applies them."""

from collections.abc import Mapping


class ConfigRepository:
    """{topic: its own settings as text}; empty for an unknown topic."""

    def __init__(self) -> None:
        self._topics: dict[str, Mapping[str, str]] = {}

    def topic(self, name: str) -> Mapping[str, str]:
        return self._topics.get(name, {})

    def all(self) -> Mapping[str, Mapping[str, str]]:
        """{topic: its own settings}, the live mapping."""
        return self._topics

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a topic's own settings."""
        self._topics[name] = config

    def remove(self, name: str) -> None:
        """Forget a topic, if it is known."""
        self._topics.pop(name, None)
