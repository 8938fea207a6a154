"""The controller election: one broker at a time, fenced by an epoch that each of its writes checks.

/controller absent ──multi: create it, set /controller_epoch from e to e+1 by version──> controller of epoch e+1
/controller exists, or another broker was faster ──> the other broker is the controller
/controller deleted, or overwritten by hand ──its watch fires──> Deposed
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from pybroker import errors
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import (
    BadArguments,
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Session,
    SessionExpired,
    Set,
    StoreDamaged,
    StoreError,
    StoreFailed,
    Watch,
)
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.node_json import DAMAGED

FIRST_EPOCH = 0


class Deposed(KafkaError):
    """NOT_CONTROLLER: this broker was elected, but another client has since changed /controller or its epoch."""

    def __init__(self, why: str) -> None:
        super().__init__(errors.NOT_CONTROLLER, why)


class Fence(NamedTuple):
    """The right to write as controller: valid while /controller_epoch is at `version`."""

    epoch: int
    version: int

    @property
    def check(self) -> Check:
        """The check that goes first in every multi of the controller."""
        return Check(nodes.CONTROLLER_EPOCH, self.version)


async def elect(session: Session, broker_id: int, now_ms: int) -> Fence | None:
    """Become controller; None if another broker is. `now_ms` is the timestamp in /controller. Raises StoreError."""
    while True:
        try:
            data, stat = await until_answered(lambda: session.get(nodes.CONTROLLER_EPOCH))
        except NoNode:
            with contextlib.suppress(NodeExists):
                await commit(session, [Create(nodes.CONTROLLER_EPOCH, str(FIRST_EPOCH).encode())])
            continue
        epoch = nodes.load_controller_epoch(data) + 1
        claim = nodes.dump_controller(broker_id, now_ms)
        try:
            await commit(
                session,
                [
                    Create(nodes.CONTROLLER, claim, ephemeral=True),
                    Set(nodes.CONTROLLER_EPOCH, str(epoch).encode(), stat.version),
                ],
            )
        except NodeExists:
            return None
        except BadVersion:
            continue
        return Fence(epoch, stat.version + 1)


def unwritable(problem: StoreError) -> KafkaError:
    """INVALID_REQUEST for a write that the store can never take, otherwise KAFKA_STORAGE_ERROR."""
    code = errors.INVALID_REQUEST if isinstance(problem, BadArguments) else errors.KAFKA_STORAGE_ERROR
    return KafkaError(code, f"the coordination store cannot be written to: {problem}")


def damaged(path: str, problem: StoreDamaged) -> KafkaError:
    """KAFKA_STORAGE_ERROR for settings that an alteration must keep but cannot read. (Kafka takes them as empty, and
    overwrites them.)"""
    what = problem.detail.removeprefix(DAMAGED)
    why = f"{path} is damaged in the coordination store ({what}), and is not overwritten: correct or delete it there"
    return KafkaError(errors.KAFKA_STORAGE_ERROR, why)


async def read_config(
    session: Session, path: str, load: Callable[[bytes], dict[str, str]] = nodes.load_config
) -> tuple[dict[str, str], int | None]:
    """The settings in a node and its version, None if it does not exist. Raises `damaged`, StoreError."""
    try:
        data, stat = await read(session, path)
        return load(data), stat.version
    except NoNode:
        return {}, None
    except StoreDamaged as problem:
        raise damaged(path, problem) from problem


async def write(session: Session, fence: Fence, ops: list[Op]) -> None:
    """Commit all of the operations or none, as this controller. Raises NodeExists, NoNode, BadVersion, NotEmpty,
    NOT_CONTROLLER if another controller was elected or the session has ended, otherwise the error of `unwritable`."""
    try:
        await commit(session, [fence.check, *ops])
    except StoreError as problem:
        if isinstance(problem, BadVersion) and problem.index == 0:
            raise Deposed("another broker has become the controller") from None
        if isinstance(problem, SessionExpired | ConnectionLoss):
            raise KafkaError(errors.NOT_CONTROLLER, f"this broker is no longer the controller: {problem}") from problem
        if isinstance(problem, NodeExists | NoNode | BadVersion | NotEmpty):
            raise
        raise unwritable(problem) from problem


async def check_reign(session: Session, fence: Fence) -> None:
    """Check that no later controller was elected, after a broker has reported one. Raises Deposed."""
    data, _ = await until_answered(lambda: session.get(nodes.CONTROLLER_EPOCH))
    epoch = nodes.load_controller_epoch(data)
    if epoch != fence.epoch:
        raise Deposed(f"the controller of epoch {epoch} was elected")


async def check_node(session: Session, broker_id: int, watch: Watch) -> None:
    """Check that this session owns /controller and that it names this broker; `watch` fires at its next change. Raises
    Deposed, StoreError."""
    path = nodes.CONTROLLER
    there = await until_answered(lambda: session.exists(path, watch=watch))
    if there is not None and there.ephemeral_owner == session.id and there.version == 0:
        return  # unchanged since the election
    if there is not None and there.ephemeral_owner != session.id:
        raise Deposed(f"{path} belongs to another session")
    try:
        named = nodes.load_controller((await read(session, path))[0])
    except NoNode:
        raise Deposed(f"{path} was deleted") from None
    except StoreFailed as problem:  # it is damaged, or access is denied
        raise Deposed(f"{path} was overwritten and cannot be read: {problem.detail}") from None
    if named != broker_id:
        raise Deposed(f"{path} was overwritten and names broker {named}")
