"""One-shot watches of nodes, with ZooKeeper's rules of which event fires which watch."""

from .store import EventType, Watch, WatchEvent

DATA, EXIST, CHILD = range(3)
"""Kinds of watches: set by get (or by exists if the node exists), by exists if it does not, and by children."""

FIRES = {
    EventType.CREATED: (EXIST,),
    EventType.DATA_CHANGED: (DATA,),
    EventType.CHILDREN_CHANGED: (CHILD,),
    EventType.DELETED: (DATA, CHILD),
}


class Watches:
    """The watches of one session."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str], dict[Watch, None]] = {}

    def add(self, kind: int, path: str, watch: Watch) -> None:
        """Set a watch. A watch that is set twice before it fires still fires once."""
        self._waiting.setdefault((kind, path), {})[watch] = None

    def take(self, event: WatchEvent) -> list[Watch]:
        """Remove and return the watches that an event fires, each once, in the order in which they were set."""
        fired: dict[Watch, None] = {}
        for kind in FIRES[event.type]:
            fired |= self._waiting.pop((kind, event.path), {})
        return list(fired)

    def clear(self) -> None:
        self._waiting.clear()
