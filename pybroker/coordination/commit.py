"""Writes whose outcome is known: what a broken connection leaves open is read back.

    multi --an answer--> done, or refused
      | ConnectionLoss
      v
    its checks again, then its nodes --a check fails--> refused
      |                              --each node is as the write leaves it--> done
      | they are not: it had no effect, and nothing arrives any more that was sent on the old connection
      v
    multi, once more

The checks go through ZooKeeper's leader, as every multi does, so what is read behind them is no older than the write.

How nodes show that it was this write: a created one has its data and its owner and was not set since, one that was set
at a version is at the next one, a deleted one is gone; and those that are there were last written by one transaction.
This is sound while nobody else writes the same: because the checks keep others out, as the controller's epoch does, or
because what is written is the writer's own, as an ephemeral node is. A node that holds already what it is to be set to,
at whatever version, counts as set.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .store import (
    ANY_VERSION,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    NoNode,
    Op,
    Session,
    SessionExpired,
    Stat,
    StoreError,
    StoreFailed,
)

T = TypeVar("T")

ENDS_MAX = 100
"""So often a write is sent anew though the connection ends at it, and the store answers in between: there is something
about it that the store does not take."""


async def commit(session: Session, ops: Sequence[Op]) -> None:
    """Do all of the operations, once, or none. Raises as `multi`, but ConnectionLoss only where it stays unknown: the
    session ended before it was read back, or nothing but sequential nodes would show it.

    A check that fails says that others have written since; what was lost before may have taken effect before them."""
    unknown, sent = False, 0
    while True:
        try:
            if not (unknown and await _took_effect(session, ops)):
                if sent > ENDS_MAX:
                    raise StoreFailed(ops[0].path, f"the connection has ended {sent} times at this write")
                sent += 1
                await session.multi(ops)
            return
        except ConnectionLoss:
            if any(map(_numbered, ops)) and all(isinstance(op, Check) or _numbered(op) for op in ops):
                raise
            unknown = True
        except SessionExpired as end:
            if unknown:
                raise ConnectionLoss(detail="the session ended before an unknown outcome was read back") from end
            raise


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask on each next connection what may be done twice: a read, above all. Raises as `ask`, but no ConnectionLoss."""
    while True:
        try:
            return await ask()
        except ConnectionLoss:
            continue  # what is asked now waits for the connection


async def read(session: Session, path: str) -> tuple[bytes, Stat]:
    """A node's data and Stat, asked for until there is an answer. Raises as `get`, but no ConnectionLoss."""
    return await until_answered(lambda: session.get(path))


async def _took_effect(session: Session, ops: Sequence[Op]) -> bool:
    """Whether the operations were done. Raises the StoreError of a check that fails, and as a read does."""
    checks = [(index, op) for index, op in enumerate(ops) if isinstance(op, Check)]
    last = {op.path: op for op in ops if not isinstance(op, Check) and not _numbered(op)}
    asked = session.multi([op for _, op in checks])
    reads = [session.get(path) for path in last]
    await asyncio.gather(asked, *reads, return_exceptions=True)
    try:
        asked.result()
    except StoreError as refused:
        refused.index = None if refused.index is None else checks[refused.index][0]
        raise
    transactions = set()
    for op, read in zip(last.values(), reads, strict=True):
        node = None if isinstance(read.exception(), NoNode) else read.result()
        if not _done(op, node, session.id):
            return False
        if node is not None:
            transactions.add(node[1].mzxid)
    return len(transactions) <= 1


def _done(op: Op, node: tuple[bytes, Stat] | None, session: int) -> bool:
    """Whether a node is as an operation of the session leaves it."""
    if node is None or isinstance(op, Delete):
        return node is None and isinstance(op, Delete)
    data, stat = node
    if isinstance(op, Create):
        return (data, stat.version, stat.ephemeral_owner) == (op.data, 0, session if op.ephemeral else 0)
    assert not isinstance(op, Check)
    return data == op.data and op.version in (ANY_VERSION, stat.version - 1)


def _numbered(op: Op) -> bool:
    """Whether nothing at the operation's path shows that it was done: the node's name has a number."""
    return isinstance(op, Create) and op.sequential
