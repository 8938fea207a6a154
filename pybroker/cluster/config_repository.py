"""Topics' own settings, as this broker was told of them: who describes or applies them asks nobody else."""

from collections.abc import Mapping


class ConfigRepository:
    """{topic: its own settings as text}; of a topic that is not known, none."""

    def __init__(self) -> None:
        self._topics: dict[str, Mapping[str, str]] = {}

    def topic(self, name: str) -> Mapping[str, str]:
        return self._topics.get(name, {})

    def all(self) -> Mapping[str, Mapping[str, str]]:
        """{topic: its own settings} as it is now; it changes."""
        return self._topics

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """These are all of a topic's own from now on."""
        self._topics[name] = config

    def remove(self, name: str) -> None:
        """Forget a topic; one that is unknown is no error."""
        self._topics.pop(name, None)
