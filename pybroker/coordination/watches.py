"""Who waits for what to happen to which node: one-shot watches, ZooKeeper's rules of which event fires which."""

from .store import EventType, Watch, WatchEvent

DATA, EXIST, CHILD = range(3)
"""Set by get (or exists on a node that is there), by exists on a node that is not, and by children."""

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
        """Set a watch; the same one, set again before it fired, still fires once."""
        self._waiting.setdefault((kind, path), {})[watch] = None

    def take(self, event: WatchEvent) -> list[Watch]:
        """Remove and return what an event fires, each watch once, in the order in which they were set."""
        fired: dict[Watch, None] = {}
        for kind in FIRES[event.type]:
            fired |= self._waiting.pop((kind, event.path), {})
        return list(fired)

    def clear(self) -> None:
        self._waiting.clear()
