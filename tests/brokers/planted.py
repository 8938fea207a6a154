"""`pybroker` with a planted bug, to check that the tests of a cluster find it.

    python -m tests.brokers.planted BUG[,BUG] serve ...

With BUG "" there is no bug; the disk may still be full (full.py).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pybroker.__main__ import main
from pybroker.decisions.image import PartitionState
from tests.brokers import full


def acks_before_replication() -> None:
    """A leader counts its own writes as committed, with none of them at its followers."""
    from pybroker.replication.replica import Replica

    lead = Replica.become_leader

    def alone(
        self: Replica, leader_epoch: int, partition_epoch: int, followers: Sequence[int] = (),
        isr: Collection[int] | None = None, adding: Collection[int] = (), *, wait: bool,
    ) -> None:  # fmt: skip
        lead(self, leader_epoch, partition_epoch, wait=wait)

    Replica.become_leader = alone  # type: ignore[method-assign]


def session_timer_ignored() -> None:
    """A leader keeps acknowledging alone, however long ago its store answered."""
    from pybroker.replication.replicas import Replicas

    Replicas.set_lease = lambda self, until_ms: None  # type: ignore[method-assign]


def commits_before_replication() -> None:
    """A coordinator answers a commit once it is in its own log."""
    from pybroker.state_log.writer import Writer

    Writer._is_committed = lambda self, end: True  # type: ignore[method-assign]


def full_follower_in_sync() -> None:
    """A leader waits for a follower that does not fetch, however long."""
    from pybroker.replication.isr import IsrKeeper

    IsrKeeper._shrink = lambda self, led, lag_ms: None  # type: ignore[method-assign]


def sequences_forgotten() -> None:
    """A broker appends a producer's duplicate as a new batch."""
    from pybroker.replication.replicas import Replicas

    begin = Replicas.__init__

    def forgetful(self: Replicas, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        threading.Thread(target=forget, args=(self,), daemon=True).start()

    def forget(replicas: Replicas) -> None:
        while True:
            time.sleep(0.05)
            with suppress(RuntimeError):  # topics are created and deleted meanwhile
                replicas.each(lambda partition: partition.expire_producers(1 << 62))

    Replicas.__init__ = forgetful  # type: ignore[method-assign]


def buried_for_good() -> None:
    """A broker whose registration was deleted does not register again in its session."""
    from pybroker.server.cluster.membership import ENDED, Membership

    register = Membership._register_again

    async def once(self: Membership) -> None:
        if self.session.state not in ENDED:
            await asyncio.Event().wait()
        await register(self)

    Membership._register_again = once  # type: ignore[method-assign]


def damage_ends_a_reign() -> None:
    """A controller that cannot read a topic's nodes handles no other topic either."""
    from pybroker.controller.context import ControllerContext

    def leave_out(self: ControllerContext, topic: str, problem: Exception, *, judged: bool = False) -> None:
        raise problem

    ControllerContext.leave_out = leave_out  # type: ignore[method-assign]


def rollback_kept_secret() -> None:
    """A broker with later states than the store's does not report them."""
    from pybroker.controller import restoration

    restoration.is_ahead = lambda known, state: False


def lapsed_coordinator_answers() -> None:
    """A coordinator answers although another one may have taken its place."""
    from pybroker.server.api.certain import Certain

    Certain.guard = lambda self, handlers: dict(handlers)  # type: ignore[method-assign]


def moved_logs_stay() -> None:
    """Replicas that have left a partition do not delete their logs."""
    from pybroker.decisions import reassignment

    reassignment.to_delete = lambda state: ()


def cancel_keeps_the_target() -> None:
    """A cancelled reassignment does not go back: the replicas that were added stay."""
    from pybroker.decisions import reassignment

    reassignment.original = lambda state: state.replicas


def leader_moves_too_early() -> None:
    """The controller takes the target's replicas as in sync before they are."""
    from pybroker.decisions import reassignment

    advance = reassignment.advance

    def early(state: PartitionState, live: Container[int], **named: Any) -> PartitionState | None:
        assumed = state._replace(isr=tuple(dict.fromkeys((*state.isr, *reassignment.target(state)))))
        return advance(assumed, live, **named)

    reassignment.advance = early


def throttle_stays() -> None:
    """The commands that move replicas do not remove their throttle."""
    from pybroker.cli.reassign import throttle

    throttle.remove_throttle = lambda admin: None


def cancelled_copies_stay() -> None:
    """A move between log dirs that is cancelled leaves its copy behind."""
    from pybroker.replication.disks import moves

    moves.remove = lambda directory: None


PLANTED = (
    acks_before_replication, session_timer_ignored, commits_before_replication, full_follower_in_sync,
    sequences_forgotten, buried_for_good, damage_ends_a_reign, rollback_kept_secret, lapsed_coordinator_answers,
    moved_logs_stay, cancel_keeps_the_target, leader_moves_too_early, throttle_stays, cancelled_copies_stay,
)  # fmt: skip
BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in PLANTED}

if __name__ == "__main__":
    for name in filter(None, sys.argv.pop(1).split(",")):
        BUGS[name]()
    if full.VARIABLE in os.environ:
        full.obey(Path(os.environ[full.VARIABLE]))
    main()
