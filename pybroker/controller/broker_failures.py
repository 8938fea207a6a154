"""Handles failed disks and dead processes of brokers.

    a log dir failed    Its broker leaves a notice ──> LeaderAndIsr of all its replicas ──> the response marks those it
                        cannot use or, if the log dir is full, cannot append to, until another notice.
    a process died      Its address refuses ──> its node is deleted, unless it has registered again meanwhile.
"""

from __future__ import annotations

import contextlib
import logging

from pybroker.controller.context import ControllerContext
from pybroker.controller.damage import is_of_one_topic
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import Delete, NoNode, NotEmpty, StoreFailed, Watch
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import write

log = logging.getLogger(__name__)


async def failed_log_dirs(context: ControllerContext, watch: Watch) -> set[int]:
    """The live brokers that left a notice since the last call; the notices are deleted. Raises StoreError,
    NOT_CONTROLLER."""
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
        except (NoNode, NotEmpty):  # another program created a node below it: it is read again next time
            pass
        except KafkaError as problem:
            if not is_of_one_topic(problem):
                raise
            event(log, logging.DEBUG, "notice not deleted", node=path, reason=problem.message)
    return found & context.brokers.keys()


async def bury(context: ControllerContext, broker: int, epoch: int) -> None:
    """Delete the node of a broker whose address refuses, if this is still its registration. Raises StoreError."""
    if context.epochs.get(broker) != epoch:
        return
    stat = await until_answered(lambda: context.session.exists(nodes.broker(broker)))
    if stat is None or stat.czxid != epoch:
        return
    if broker in context.leaving:  # a controlled shutdown: the session may briefly outlast the process
        event(log, logging.INFO, "broker stopped", broker=broker, epoch=epoch)
    else:
        event(log, logging.WARNING, "broker is dead", broker=broker, epoch=epoch, cause="its address refuses")
    with contextlib.suppress(NoNode):
        await until_answered(lambda: context.session.delete(nodes.broker(broker), stat.version))
