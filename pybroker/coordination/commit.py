"""Writes with a known outcome: if the connection breaks before the answer, the nodes are read back.

    multi --an answer--> done, or refused
      | ConnectionLoss
      v
    its checks again, then its nodes --a check fails--> refused
      |                              --each node is as the write leaves it--> done
      | a node is not: the write had no effect, and the old connection delivers nothing any more
      v
    multi, once more

The checks go through ZooKeeper's leader, as every multi does, so the reads after them are no older than the write.

The nodes show this write if: a created node has the data, the owner and version 0; a node set at a version is at the
next version; a deleted node is gone; and all existing nodes were last written by one transaction. This is sound while
no other client writes the same values: the checks exclude others (the controller's epoch), or only this client writes
the node (an ephemeral node). A Set without a version counts as done if the node has the data already.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .store import (
    ANY_VERSION,
    Answer,
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
"""Give up a write after it was sent this often and the connection ended each time, though the store answers reads in
between: the store does not accept this write."""


async def commit(session: Session, ops: Sequence[Op]) -> list[Answer] | None:
    """Do all of the operations once, or none. Return their answers, or None if they were done but the answer was lost.

    Raises as `multi`, but ConnectionLoss only if the outcome stays unknown: the session ended before the nodes were
    read back, or only sequential nodes would show it. If a check fails, another client has written since; the lost
    write may have taken effect before that."""
    unknown, sent = False, 0
    while True:
        try:
            if unknown and await _took_effect(session, ops):
                return None
            if sent > ENDS_MAX:
                raise StoreFailed(ops[0].path, f"the connection has ended {sent} times at this write")
            sent += 1
            return await session.multi(ops)
        except ConnectionLoss:
            if any(map(_numbered, ops)) and all(isinstance(op, Check) or _numbered(op) for op in ops):
                raise
            unknown = True
        except SessionExpired as end:
            if unknown:
                raise ConnectionLoss(detail="the session ended before an unknown outcome was read back") from end
            raise


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent operation, such as a read, until it is answered. Raises as `ask`, but no ConnectionLoss."""
    while True:
        try:
            return await ask()
        except ConnectionLoss:
            continue  # the next attempt waits for the next connection


async def read(session: Session, path: str) -> tuple[bytes, Stat]:
    """The node's data and Stat; repeated until it is answered. Raises as `get`, but no ConnectionLoss."""
    return await until_answered(lambda: session.get(path))


async def _took_effect(session: Session, ops: Sequence[Op]) -> bool:
    """True if the operations were done. Raises the StoreError of a failed check or read."""
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
    """True if a node is as this operation of the session leaves it."""
    if node is None or isinstance(op, Delete):
        return node is None and isinstance(op, Delete)
    data, stat = node
    if isinstance(op, Create):
        return (data, stat.version, stat.ephemeral_owner) == (op.data, 0, session if op.ephemeral else 0)
    assert not isinstance(op, Check)
    return data == op.data and op.version in (ANY_VERSION, stat.version - 1)


def _numbered(op: Op) -> bool:
    """True for a sequential create: the node's name is not known, so it cannot be read back."""
    return isinstance(op, Create) and op.sequential
