"""`pybroker` with a bug in it, to see that the tests of a cluster find it.

    python -m tests.brokers.planted BUG[,BUG] serve ...

No BUG ("") is one without; its disk may be full all the same (full.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def full_follower_in_sync() -> None:
    """A leader waits for a follower that does not fetch, however long."""
    from pybroker.replication.isr import IsrKeeper

    IsrKeeper._shrink = lambda self, led, lag_ms: None  # type: ignore[method-assign]


def sequences_forgotten() -> None:
    """A broker takes what a producer sends again for something new."""
    from pybroker.replication.replicas import Replicas

    begin = Replicas.__init__

    def forgetful(self: Replicas, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        threading.Thread(target=forget, args=(self,), daemon=True).start()

    def forget(replicas: Replicas) -> None:
        while True:
            time.sleep(0.05)
            with suppress(RuntimeError):  # topics come and go meanwhile
                replicas.each(lambda partition: partition.expire_producers(1 << 62))

    Replicas.__init__ = forgetful  # type: ignore[method-assign]


def buried_for_good() -> None:
    """A broker whose registration was deleted does not register again in the session that it has."""
    from pybroker.server.membership import ENDED, Membership

    register = Membership._register_again

    async def once(self: Membership) -> None:
        if self.session.state not in ENDED:
            await asyncio.Event().wait()
        await register(self)

    Membership._register_again = once  # type: ignore[method-assign]


def damage_ends_a_reign() -> None:
    """A controller that cannot read a topic's nodes serves no other topic, either."""
    from pybroker.controller.cluster_context import ClusterContext

    def leave_out(self: ClusterContext, topic: str, problem: Exception, *, judged: bool = False) -> None:
        raise problem

    ClusterContext.leave_out = leave_out  # type: ignore[method-assign]


def rollback_kept_secret() -> None:
    """A broker that knows later states than the store's says nothing of them."""
    from pybroker.controller import restoration

    restoration.is_ahead = lambda known, state: False


def lapsed_coordinator_answers() -> None:
    """A coordinator answers what it knows, though another one may have taken its place."""
    from pybroker.server.certain import Certain

    Certain.guard = lambda self, handlers: dict(handlers)  # type: ignore[method-assign]


PLANTED = (
    acks_before_replication, session_timer_ignored, commits_before_replication, full_follower_in_sync,
    sequences_forgotten, buried_for_good, damage_ends_a_reign, rollback_kept_secret, lapsed_coordinator_answers,
)  # fmt: skip
BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in PLANTED}

if __name__ == "__main__":
    for name in filter(None, sys.argv.pop(1).split(",")):
        BUGS[name]()
    if full.VARIABLE in os.environ:
        full.obey(Path(os.environ[full.VARIABLE]))
    main()
