"""What fails under brokers, as the controller of a cluster hears of it: their disks, and their processes.

    a log dir failed    its broker, which lives, leaves a notice ──> LeaderAndIsr of all it holds ──> it answers which
                        of these it cannot use, or (the log dir is full) cannot append to, until another notice
    a process died      its address refuses ──> its node is deleted, unless it was registered anew meanwhile
"""

from __future__ import annotations

import contextlib
import logging

from pybroker.controller import nodes
from pybroker.controller.cluster_context import ClusterContext
from pybroker.controller.damage import is_of_one_topic
from pybroker.controller.election import write
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import Delete, NoNode, NotEmpty, StoreFailed, Watch
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)


async def failed_log_dirs(context: ClusterContext, watch: Watch) -> set[int]:
    """The live brokers that left a notice since the last look; the notices are gone then. Raises StoreError, and
    KafkaError: NOT_CONTROLLER."""
    names = await context.names(nodes.LOG_DIR_EVENTS, watch)
    found = set()
    for name in sorted(names):
        path = f"{nodes.LOG_DIR_EVENTS}/{name}"
        try:
            data, _ = await read(context.session, path)
            found.add(nodes.load_log_dir_event(data))
        except NoNode:
            continue
        except StoreFailed as problem:  # the node is damaged, or access is denied
            context.not_read(path, problem)
        try:
            await write(context.session, context.fence, [Delete(path)])
        except (NoNode, NotEmpty):  # another program put a node below it: it is read again
            pass
        except KafkaError as problem:
            if not is_of_one_topic(problem):
                raise
            event(log, logging.DEBUG, "notice not deleted", node=path, reason=problem.message)
    return found & context.brokers.keys()


async def bury(context: ClusterContext, broker: int, epoch: int) -> None:
    """Nobody listens where the broker of this registration was: delete its node. Raises StoreError."""
    if context.epochs.get(broker) != epoch:
        return
    stat = await until_answered(lambda: context.session.exists(nodes.broker(broker)))
    if stat is None or stat.czxid != epoch:
        return
    if broker in context.leaving:  # a controlled shutdown: the session may outlast the process by a moment
        event(log, logging.INFO, "broker stopped", broker=broker, epoch=epoch)
    else:
        event(log, logging.WARNING, "broker is dead", broker=broker, epoch=epoch, cause="its address refuses")
    with contextlib.suppress(NoNode):
        await until_answered(lambda: context.session.delete(nodes.broker(broker), stat.version))
