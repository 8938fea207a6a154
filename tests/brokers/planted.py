"""`pybroker` with a bug in it, to see that the tests of a cluster find it.

    python -m tests.brokers.planted BUG serve ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence

from pybroker.__main__ import main


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


BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in (acks_before_replication,)}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main()
