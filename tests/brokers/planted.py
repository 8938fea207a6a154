"""`pybroker` with a bug in it, to see that the tests of a cluster find it.

    python -m tests.brokers.planted BUG[,BUG] serve ...

No BUG ("") is one without; its disk may be full all the same (full.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pybroker.__main__ import main
from tests.brokers import full


def acks_before_replication() -> None:
    """A leader counts what it wrote as committed, whatever its followers have."""
    from pybroker.replication.replica import Replica

    lead = Replica.lead

    async def alone(
        self: Replica, leader_epoch: int, partition_epoch: int, followers: Sequence[int] = (),
        isr: Collection[int] | None = None,
    ) -> None:  # fmt: skip
        await lead(self, leader_epoch, partition_epoch)

    Replica.lead = alone  # type: ignore[method-assign]


def session_timer_ignored() -> None:
    """A leader goes on alone, however long ago its store answered."""
    from pybroker.replication.replicas import Replicas

    Replicas.set_lease = lambda self, until_ms: None  # type: ignore[method-assign]


def commits_before_replication() -> None:
    """A coordinator answers a commit once it is in its own log."""
    from pybroker.groups.writer import Writer

    Writer._is_committed = lambda self, end: True  # type: ignore[method-assign]


PLANTED = (acks_before_replication, session_timer_ignored, commits_before_replication)
BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in PLANTED}

if __name__ == "__main__":
    for name in filter(None, sys.argv.pop(1).split(",")):
        BUGS[name]()
    if full.VARIABLE in os.environ:
        full.obey(Path(os.environ[full.VARIABLE]))
    main()
