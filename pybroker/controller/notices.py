"""Notices: nodes below a few parents, each of which tells the brokers of one change.

    with Notices(session, parent, ...) as notices:
        look() ──> the paths of new ones, or None: read everything ──> wait() ──> look() ...

Everything is to be read at the first look, which comes behind the watches, so that nothing is missed in between; and
where a parent was made anew: the names of its notices begin anew, too.
"""

import asyncio

from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Session, SessionState, WatchEvent


class Notices:
    """Those of one session; while it is entered, its end and its connections wake who waits."""

    def __init__(self, session: Session, *parents: str) -> None:
        self._session = session
        self._seen: dict[str, tuple[int, set[str]]] = dict.fromkeys(parents, (-1, set()))
        self._changed = asyncio.Event()

    def __enter__(self) -> "Notices":
        self._session.listen(self.watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.unlisten(self.watch)

    def watch(self, _: WatchEvent | SessionState) -> None:
        """A watch that ends the wait, for what else is looked at."""
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
        return None if is_anew else fresh

    async def wait(self) -> None:
        """Until something may be new."""
        await self._changed.wait()
