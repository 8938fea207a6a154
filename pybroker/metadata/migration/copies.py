"""The copy of a tree of nodes from one store into another: in batches, parents first, and read back at the end.

    walk     the nodes of a store that are copied, generation by generation
    copy     put them into the target: with their Stat where the target is a tree of ours, else with version 0
    verify   compare both stores, node by node
    wipe     delete what an interrupted copy left

ZooKeeper's server counts versions and zxids itself. What depends on them lives in the memory of brokers, which are all
stopped: fences (an epoch and the version of its node), partition epochs, broker epochs. Only the sequence of broker ids
is a version that must not go back, so that node is set as often as needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import NodeCopy, NodeExists, NoNode, Session, Stat
from pybroker.coordination.tree_session import TreeSession
from pybroker.errors import KafkaError
from pybroker.metadata import delegation_tokens, nodes
from pybroker.security import acl_nodes

from .marks import MARKS

T = TypeVar("T")
Progress = Callable[[str, int], object]
"""Called with a verb and the number of nodes that are done."""

ROOT: Final = "/"
AT_ONCE: Final = 500
"""Nodes that are read, or written, at once."""
BYTES_AT_ONCE: Final = 800_000
"""Data of the nodes that are restored in one transaction; a single node may have more."""
IDS_DRAWN_MAX: Final = 1_000_000
KAFKAS: Final = (
    "admin", "brokers", "cluster", "config", "consumers", "controller_epoch", "delegation_token", "feature",
    "isr_change_notification", "kafka-acl", "kafka-acl-changes", "kafka-acl-extended", "kafka-acl-extended-changes",
    "latest_producer_id_block", "log_dir_event_notification", "migration",
)  # fmt: skip
"""Names below the root: others are not the cluster's, as in a ZooKeeper without a chroot."""
NOTICES: Final = (
    nodes.CONFIG_CHANGES, delegation_tokens.CHANGES, acl_nodes.CHANGES, acl_nodes.EXTENDED_CHANGES,
    nodes.LOG_DIR_EVENTS, "/isr_change_notification",
)  # fmt: skip
"""Nodes whose children stay behind: a start reads everything, and the names of later ones would be taken."""


class TreeForm:
    """The form of a tree at the target. A subclass leaves nodes out, or writes their data otherwise."""

    def takes(self, path: str) -> bool:
        """True for a node that is copied, with the nodes below it."""
        head, _, name = path.rpartition("/")
        return name in KAFKAS if not head else head not in NOTICES

    def data(self, path: str, data: bytes) -> bytes:
        """The data of a node at the target."""
        return data


class FoundNode(NamedTuple):
    """A node with the names of its children that are copied."""

    copy: NodeCopy
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.copy.path


class Copied(NamedTuple):
    """Tally of nodes, and of topics and partitions among them."""

    nodes: int
    topics: int
    partitions: int


async def walk(session: Session, form: TreeForm) -> AsyncIterator[list[FoundNode]]:
    """Yield the persistent nodes that are copied, in batches, each with its data in the form of the target. Raises
    StoreError, KafkaError."""
    generation = [ROOT]
    while generation:
        below: list[str] = []
        for first in range(0, len(generation), AT_ONCE):
            paths = generation[first : first + AT_ONCE]
            found = [each for each in await _read(session, paths, form) if each is not None]
            found = [each for each in found if not each.copy.stat.ephemeral_owner]
            below += [_child(each.path, name) for each in found for name in each.names]
            yield found
        generation = below


async def _read(session: Session, paths: Sequence[str], form: TreeForm) -> list[FoundNode | None]:
    """Read nodes and the names of their children; None for a node that does not exist."""

    async def one(path: str) -> FoundNode | None:
        try:
            (data, stat), (names, _) = await asyncio.gather(session.get(path), session.children(path))
        except NoNode:
            return None
        taken = tuple(name for name in names if form.takes(_child(path, name)))
        return FoundNode(NodeCopy(path, form.data(path, data), stat), taken)

    return await _all([partial(one, path) for path in paths])


async def copy(source: Session, target: Session, form: TreeForm, said: Progress) -> None:
    """Copy a tree into a store that has none. Raises StoreError, KafkaError."""
    done = 0
    async for found in walk(source, form):
        copies = [each.copy for each in found]
        if isinstance(target, TreeSession):
            await _restore(target, copies)
        else:
            await _all([partial(_put, target, each) for each in copies if each.path != ROOT])
            await _draw_ids(target, copies)
        done += len(copies)
        said("copied", done)


async def _restore(target: TreeSession, copies: Sequence[NodeCopy]) -> None:
    share, size = list[NodeCopy](), 0
    for each in copies:
        if share and size + len(each.data) > BYTES_AT_ONCE:
            await until_answered(partial(target.restore, share))
            share, size = [], 0
        share.append(each)
        size += len(each.data)
    if share:
        await until_answered(partial(target.restore, share))


async def _put(target: Session, wanted: NodeCopy) -> None:
    try:
        await target.create(wanted.path, wanted.data)
    except NodeExists:  # an answer was lost
        await target.set(wanted.path, wanted.data)


async def _draw_ids(target: Session, copies: Sequence[NodeCopy]) -> None:
    """Raise the sequence of broker ids, the version of a node, to that of the source, so that no id is given again."""
    for each in copies:
        if each.path != nodes.SEQUENCE_OF_IDS:
            continue
        if each.stat.version > IDS_DRAWN_MAX:
            raise KafkaError(
                errors.INVALID_CONFIG,
                f"{each.path} has version {each.stat.version}, and no cluster has drawn {IDS_DRAWN_MAX} broker ids",
            )
        while (missing := each.stat.version - (await _stat(target, each.path)).version) > 0:
            await _all([partial(target.set, each.path, each.data)] * min(missing, AT_ONCE))


async def verify(source: Session, target: Session, form: TreeForm, said: Progress) -> Copied:
    """Compare the tree of the target with that of the source, and count. Raises KafkaError at the first difference."""
    counts, keeps = Tally(), isinstance(target, TreeSession)
    async for found in walk(source, form):
        there = await _read(target, [each.path for each in found], TreeForm())
        for wanted, is_there in zip(found, there, strict=True):
            if (problem := _difference(wanted, is_there, keeps=keeps)) is not None:
                raise KafkaError(
                    errors.INVALID_CONFIG,
                    f"{wanted.path} differs after the copy ({problem}): if a broker was started at the source, stop "
                    "it; then run the same command again",
                )
        counts.add(found)
        said("compared", counts.copied.nodes)
    return counts.copied


async def count(session: Session, form: TreeForm) -> Copied:
    """Count the nodes that are copied. Raises as `walk`."""
    counts = Tally()
    async for found in walk(session, form):
        counts.add(found)
    return counts.copied


class Tally:
    """Tally of the nodes of a walk."""

    def __init__(self) -> None:
        self.copied = Copied(0, 0, 0)

    def add(self, found: Sequence[FoundNode]) -> None:
        depths = Counter(each.path.count("/") for each in found if each.path.startswith(f"{nodes.TOPICS}/"))
        more = (len(found), depths[nodes.topic("t").count("/")], depths[nodes.partition("t", 0).count("/")])
        self.copied = Copied(*map(sum, zip(self.copied, more, strict=True)))


def _difference(wanted: FoundNode, there: FoundNode | None, *, keeps: bool) -> str | None:
    """Describe the difference of a node, without its data, which may be secret; None if there is none."""
    if there is None:
        return "it is missing"
    if there.copy.data != wanted.copy.data and wanted.path != ROOT:
        return "its data"
    if more := sorted({*there.names} - {*wanted.names}):
        return f"{more[0]} below it is new"
    has, had = there.copy.stat.version, wanted.copy.stat.version
    if has != had if keeps else has < had and wanted.path == nodes.SEQUENCE_OF_IDS:
        return f"version {has}, not {had}"
    return None


async def occupied(session: Session) -> str | None:
    """A node of a cluster, or the mark of a migration, that a store has; None if it has neither. Raises StoreError."""
    names, _ = await until_answered(lambda: session.children(ROOT))
    return next((_child(ROOT, name) for name in names if name in KAFKAS or f"/{name}" in MARKS), None)


async def wipe(session: Session, said: Progress) -> None:
    """Delete all nodes of a cluster, children first. Raises StoreError."""
    paths = [each.path async for found in walk(session, Everything()) for each in found if each.path != ROOT]
    for depth in sorted({path.count("/") for path in paths}, reverse=True):
        generation = [path for path in paths if path.count("/") == depth]
        for first in range(0, len(generation), AT_ONCE):
            await _all([partial(_delete, session, path) for path in generation[first : first + AT_ONCE]])
            said("removed", first)


class Everything(TreeForm):
    """All nodes of a cluster, notices too."""

    def takes(self, path: str) -> bool:
        head, _, name = path.rpartition("/")
        return bool(head) or name in KAFKAS


async def _delete(session: Session, path: str) -> None:
    with contextlib.suppress(NoNode):  # an answer was lost
        await session.delete(path)


async def _stat(session: Session, path: str) -> Stat:
    return (await until_answered(lambda: session.get(path)))[1]


async def _all(asks: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Do idempotent operations at once, each until it is answered. Raises the first error, after all have ended."""
    done = await asyncio.gather(*(until_answered(ask) for ask in asks), return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return [each for each in done if not isinstance(each, BaseException)]


def _child(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
