"""Notices: nodes below a few parents, each of which announces one change to the brokers.

    with Notices(session, parent, ...) as notices:
        look() ──> paths of new notices, or None: read everything ──> wait() ──> look() ...

The first look returns None: read everything after the watches are set, so that no change is missed in between. It also
returns None after a parent was deleted and created again, as the names of its notices start over.
"""

import asyncio

from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Session, SessionState, WatchEvent


class Notices:
    """The notices seen in one session. Inside `with`, a change of the session or its connection ends a `wait`, too."""

    def __init__(self, session: Session, *parents: str, known: bool = False) -> None:
        """`known`: everything has been read already, so the first look finds nothing new."""
        self._known = known
        self._session = session
        self._seen: dict[str, tuple[int, set[str]]] = dict.fromkeys(parents, (-1, set()))
        self._changed = asyncio.Event()

    def __enter__(self) -> "Notices":
        self._session.listen(self.watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.unlisten(self.watch)

    def watch(self, _: WatchEvent | SessionState) -> None:
        """End the wait: the watch to set on other nodes, too."""
        self._changed.set()

    async def look(self) -> list[str] | None:
        """The paths of new notices, oldest first below each parent; None: read everything. Raises StoreError."""
        self._changed.clear()
        fresh, is_anew = list[str](), False
        for parent, (made, known) in self._seen.items():
            names, stat = await until_answered(
                lambda parent=parent: self._session.children(parent, watch=self.watch)  # type: ignore[misc]
            )
            is_anew |= stat.czxid != made
            fresh += [f"{parent}/{name}" for name in sorted(set(names) - known)]
            self._seen[parent] = stat.czxid, set(names)
        if self._known:
            self._known = False
            return []
        return None if is_anew else fresh

    async def wait(self) -> None:
        """Wait until there may be new notices."""
        await self._changed.wait()
