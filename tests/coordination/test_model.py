"""The embedded store equals a simple model for any operations, sessions and restarts."""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.local_session import LocalSession
from pybroker.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    StoreError,
    WatchEvent,
)

MEMORY = Path("/dev/shm")
"""A file system in memory, so that a thousand restarts do not wait for a disk."""
NAMES = ("a", "b", "c")
PATHS = [f"/{x}" for x in NAMES] + [f"/{x}/{y}" for x in NAMES for y in NAMES] + ["/a/a/a", "/a/b/c"]
paths, data, versions = st.sampled_from(PATHS), st.binary(max_size=4), st.sampled_from([-1, -1, 0, 1, 2])
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(Create, paths, data, st.booleans(), st.booleans()),
    st.builds(Set, paths, data, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)


@dataclass
class Node:
    data: bytes
    owner: int
    version: int = 0
    creates: int = 0
    deletes: int = 0


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@dataclass
class Model:
    """A dictionary of nodes."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node(b"", 0)})

    def children(self, path: str) -> list[str]:
        return sorted(p.rpartition("/")[2] for p in self.nodes if p != "/" and parent_of(p) == path)

    def expect(self, path: str, version: int) -> Node:
        if path not in self.nodes:
            raise NoNode
        if version not in (-1, self.nodes[path].version):
            raise BadVersion
        return self.nodes[path]

    def apply(self, op: Op, session: int) -> list[WatchEvent]:
        """Apply an operation and return its events; raise the store's error without a change."""
        if isinstance(op, Create):
            return self._create(op, session)
        node = self.expect(op.path, op.version)
        if isinstance(op, Set):
            node.data, node.version = op.data, node.version + 1
            return [WatchEvent(EventType.DATA_CHANGED, op.path)]
        if isinstance(op, Delete):
            if self.children(op.path):
                raise NotEmpty
            del self.nodes[op.path]
            self.nodes[parent_of(op.path)].deletes += 1
            return self._told(EventType.DELETED, op.path)
        return []

    def _create(self, op: Create, session: int) -> list[WatchEvent]:
        parent = self.nodes.get(parent_of(op.path))
        if parent is None:
            raise NoNode
        path = f"{op.path}{parent.creates:010d}" if op.sequential else op.path
        if path in self.nodes:
            raise NodeExists
        if parent.owner:
            raise NoChildrenForEphemerals
        self.nodes[path] = Node(op.data, session if op.ephemeral else 0)
        parent.creates += 1
        return self._told(EventType.CREATED, path)

    def _told(self, what: EventType, path: str) -> list[WatchEvent]:
        return [WatchEvent(what, path), WatchEvent(EventType.CHILDREN_CHANGED, parent_of(path))]

    def end(self, session: int) -> list[WatchEvent]:
        mine = sorted((path for path, node in self.nodes.items() if node.owner == session), key=lambda p: p.split("/"))
        return [event for path in mine for event in self.apply(Delete(path), session)]


class StoreMachine(RuleBasedStateMachine):
    """Two or three sessions with random operations; the whole tree is compared after each step."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.scratch = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.model = Model()
        self.heard: list[WatchEvent] = []
        self.watched: set[tuple[str, str]] = set()
        self.run(self.reopen())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def reopen(self) -> None:
        self.store = EmbeddedStore(str(Path(self.scratch.name) / "store.db"), wall_ms=lambda: 1)
        await self.store.open()
        self.sessions = [await self.store.session(0) for _ in range(3)]
        self.watched.clear()

    def session(self, number: int) -> LocalSession:
        return self.sessions[number % len(self.sessions)]

    def expected(self, events: list[WatchEvent]) -> list[WatchEvent]:
        """The events that the first session's watches receive."""
        kinds = {
            EventType.CREATED: {"exist"},
            EventType.DATA_CHANGED: {"data"},
            EventType.CHILDREN_CHANGED: {"child"},
            EventType.DELETED: {"data", "child"},
        }
        heard = []
        for event in events:
            if fired := {(kind, event.path) for kind in kinds[event.type]} & self.watched:
                self.watched -= fired
                heard.append(event)
        return heard

    def settle(self, events: list[WatchEvent]) -> None:
        assert self.heard == self.expected(events)
        self.heard.clear()

    @rule(op=ops, number=st.integers(0, 2))
    def one(self, op: Op, number: int) -> None:
        self.compare([op], self.session(number), alone=not isinstance(op, Check))

    @rule(several=st.lists(ops, max_size=4), number=st.integers(0, 2))
    def multi(self, several: list[Op], number: int) -> None:
        self.compare(several, self.session(number), alone=False)

    def compare(self, several: list[Op], session: LocalSession, alone: bool) -> None:
        before = {path: Node(**vars(node)) for path, node in self.model.nodes.items()}
        events: list[WatchEvent] = []
        wanted: tuple[type[Exception] | None, int | None] = (None, None)
        for index, op in enumerate(several):
            try:
                events += self.model.apply(op, session.id)
            except StoreError as error:
                wanted, events, self.model.nodes = (type(error), None if alone else index), [], before
                break
        assert self.run(self.attempt(several, session, alone)) == wanted
        self.settle(events)

    async def attempt(
        self, several: list[Op], session: LocalSession, alone: bool
    ) -> tuple[type[Exception] | None, int | None]:
        try:
            match several:
                case [Create() as op] if alone:
                    await session.create(op.path, op.data, ephemeral=op.ephemeral, sequential=op.sequential)
                case [Set() as op] if alone:
                    await session.set(op.path, op.data, op.version)
                case [Delete() as op] if alone:
                    await session.delete(op.path, op.version)
                case _:
                    await session.multi(several)
        except StoreError as error:
            return type(error), error.index
        return None, None

    @rule(path=paths, kind=st.sampled_from(["data", "exist", "child"]))
    def watch(self, path: str, kind: str) -> None:
        async def read() -> None:
            session = self.session(0)
            try:
                if kind == "exist":
                    await session.exists(path, watch=self.heard.append)
                elif kind == "data":
                    await session.get(path, watch=self.heard.append)
                else:
                    await session.children(path, watch=self.heard.append)
            except NoNode:
                assert path not in self.model.nodes

        self.run(read())
        if kind == "exist" or path in self.model.nodes:
            self.watched.add(("data" if kind == "exist" and path in self.model.nodes else kind, path))

    @rule(number=st.integers(1, 2), by_itself=st.booleans())
    def end_a_session(self, number: int, by_itself: bool) -> None:
        async def end() -> None:
            old = self.sessions[number]
            if by_itself:
                await old.close()
            else:
                old.expire()
                await old.expired.wait()
            self.sessions[number] = await self.store.session(0)

        events = self.model.end(self.sessions[number].id)
        self.run(end())
        self.settle(events)

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        for session in self.sessions:
            self.model.end(session.id)
        self.run(self.reopen())

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def the_trees_are_one(self) -> None:
        async def look() -> None:
            session, found = self.sessions[0], sorted(self.model.nodes)
            got = await asyncio.gather(*[session.get(path) for path in found])
            listed = await asyncio.gather(*[session.children(path) for path in found])
            for path, (content, stat), (names, _) in zip(found, got, listed, strict=True):
                node = self.model.nodes[path]
                assert (content, stat.version, stat.ephemeral_owner) == (node.data, node.version, node.owner), path
                assert (stat.cversion, stat.data_length) == (node.creates + node.deletes, len(node.data)), path
                assert names == self.model.children(path), path
                assert stat.num_children == len(names), path

        self.run(look())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
            self.runner.close()
            self.scratch.cleanup()


StoreMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
