"""Records in which log dir each replica is, when it is created and when it has moved (see DirectoryAssignments)."""

import asyncio
import logging
from collections.abc import Iterable

from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.opening import Assignments
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)


class Placements:
    """Writes the log dirs of replicas to the store, if this broker is alone."""

    def __init__(self, assignments: Assignments | None) -> None:
        """`assignments`: None in a cluster."""
        self._assignments = assignments
        self._tasks: set[asyncio.Task[None]] = set()

    async def record(self, replicas: Iterable[Replica | None]) -> None:
        """Record the log dirs of these replicas, where they are not recorded. Raises KafkaError."""
        if self._assignments is not None:
            placed = ((r, r.directory.id) for r in replicas if r and r.log and r.directory and r.directory.id)
            await self._assignments.record((r.key.topic, r.topic_id, r.key.partition, at) for r, at in placed)

    def moved(self, replica: Replica, before: LogDir) -> None:
        """Note that a replica has moved to another log dir. Call this on the event loop."""
        if replica.gone or replica.directory is None:
            return
        before.placed -= 1
        replica.directory.placed += 1
        task = asyncio.get_running_loop().create_task(self._record_moved(replica))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record_moved(self, replica: Replica) -> None:
        try:
            await self.record([replica])
        except KafkaError as problem:  # the next start records it, as it finds the replica where it is
            event(log, logging.WARNING, "log dir of a replica not recorded", partition=replica.key, reason=problem)
