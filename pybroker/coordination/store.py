"""The coordination store as one small interface, with ZooKeeper's semantics.

A tree of nodes, each with data and a Stat; sessions, to which ephemeral nodes belong; one-shot watches. Each operation
is submitted when it is called and answers through the future that it returns: those of one session take effect in the
order of the calls, whether somebody awaits them or not, so a thousand of them cost one round. A write is durable when
its future is done. A watch fires before the answer of any later operation that sees the change (Hunt et al., ZooKeeper,
2010).

A session is as its client knows it, by what came over the connection:

    CONNECTED <--> DISCONNECTED   the connection broke: operations without an answer fail with ConnectionLoss, and any
                                  of them, from the first on, may have taken effect; watches are forgotten. What is
                                  submitted now waits for the next connection
    any of them --> EXPIRED       the store has ended the session, and the client has heard of it: not before it is
                                  connected again. Who must know earlier goes by `answered_ms`
    any of them --> CLOSED        by the client

A listener hears of each change before an operation fails of it. `commit.py` writes so that the outcome is known.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

from pybroker.clock import boot_ms
from pybroker.coordination.renewals import Renewals

T = TypeVar("T")

DATA_BYTES_MAX = 1_000_000
"""Of a node."""
REQUEST_BYTES_MAX = 1_040_000
"""ZooKeeper's default (jute.maxbuffer) allows a request of just under 1 MiB with everything in it. It ends the
connection of who sends more."""
OP_BYTES = 128
"""Of an operation beside its path and its data, at most: its kind, its version, its ACLs."""
ANY_VERSION = -1
SEQUENCE_DIGITS = 10


class Stat(NamedTuple):
    """What the store knows of a node besides its data.

    `czxid`, `mzxid` and `pzxid` number the transactions that created it, set its data, and last created or deleted a
    child; numbers only ever grow. `version` counts sets, `cversion` creations and deletions of children.
    `ephemeral_owner` is the session that the node vanishes with, 0 for none. The times may be 0 in the answer to a
    Create of a multi: ZooKeeper does not tell them there."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class EventType(IntEnum):
    """What happened to a watched node; ZooKeeper's numbers."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WatchEvent(NamedTuple):
    type: EventType
    path: str


Watch = Callable[[WatchEvent], object]
"""Called once, on the event loop. Set by `get`, it fires when the node's data is set or the node deleted; by `exists`,
also when it is created; by `children`, when a child is created or deleted or the node deleted."""


class SessionState(Enum):
    """Of a session, as its client knows it."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    CLOSED = "closed"


ENDED = (SessionState.EXPIRED, SessionState.CLOSED)
Listener = Callable[[SessionState], object]
"""Called on the event loop with each new state of a session."""


class Create(NamedTuple):
    """Create a node; its answer is (path, Stat), the path with its number if sequential."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Set a node's data if it is at `version`; its answer is the new Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children if it is at `version`; its answer is None."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Go on only if a node exists and is at `version`; its answer is None."""

    path: str
    version: int = ANY_VERSION


Op = Create | Set | Delete | Check
Answer = tuple[str, Stat] | Stat | None


class StoreError(Exception):
    """An operation of the store failed; `path` is the node's, `index` the operation's place in its multi."""

    says = "the store failed"

    def __init__(self, path: str = "", detail: str = "", index: int | None = None) -> None:
        super().__init__(path, detail, index)
        self.path = path
        self.detail = detail
        self.index = index

    def __str__(self) -> str:
        place = "" if self.index is None else f" (operation {self.index} of the multi)"
        return f"{self.path}{': ' if self.path else ''}{self.detail or self.says}{place}"


class NodeExists(StoreError):
    says = "the node exists"


class NoNode(StoreError):
    says = "there is no such node, or for a creation no parent"


class BadVersion(StoreError):
    says = "the node is at another version"


class NotEmpty(StoreError):
    says = "the node has children"


class NoChildrenForEphemerals(StoreError):
    says = "the parent is ephemeral, which has no children"


class BadArguments(StoreError):
    says = "the store does not take these arguments"


class ConnectionLoss(StoreError):
    """Whether the operation took effect is unknown."""

    says = "the connection to the store broke before the answer came"


class SessionExpired(StoreError):
    """The session ended before the operation was done: it had no effect."""

    says = "the session has expired or was closed"


class StoreClosed(StoreError):
    says = "the store is closed"


class StoreFailed(StoreError):
    """The store could not do its work: a disk that is full, a file that is damaged. Nothing of it took effect."""


class StoreRefused(StoreFailed):
    """The store does not let this client in."""


class StoreDamaged(StoreFailed):
    """What is in the file is not what was written there."""


class Session(ABC):
    """A client of the store, alive while it is heard of within `timeout_ms`; its ephemeral nodes die with it.

    Every operation may fail with ConnectionLoss, SessionExpired, StoreClosed, StoreFailed, and with BadArguments for a
    path that is none or for too much data."""

    id: int
    timeout_ms: int
    """What the store granted, which may differ from what was asked."""
    state: SessionState
    expired: asyncio.Event
    """Set once the store has ended the session by itself; its ephemeral nodes are gone by then."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.renewals = Renewals()
        self.expired = asyncio.Event()
        self._listeners: list[Listener] = []

    @property
    @abstractmethod
    def answered_ms(self) -> int:
        """When the latest request that was answered had been sent, by the clock since boot: a lease runs from here.

        The store ends the session `timeout_ms` later at the earliest. A session asks often enough by itself."""

    @property
    def silent(self) -> bool:
        """Has the store said nothing for so long that an operation waits for it? It is asked far more often."""
        return self.state is not SessionState.CONNECTED or boot_ms() - self.answered_ms > self.timeout_ms / 2

    def listen(self, listener: Listener) -> None:
        """Have a listener called with each state that the session comes to."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Call a listener no more."""
        self._listeners.remove(listener)

    def _become(self, state: SessionState) -> None:
        """Come to a state and say so; what has ended stays as it ended."""
        if state is self.state or self.state in ENDED:
            return
        self.state = state
        if state is SessionState.EXPIRED:
            self.expired.set()
        for listener in list(self._listeners):  # one may leave at what it hears
            tell(listener, state, f"a listener failed on {state.name}")

    @abstractmethod
    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> asyncio.Future[tuple[str, Stat]]:
        """Create a node under an existing parent; sequential appends the parent's counter as ten digits to the path.

        Raises NodeExists, NoNode (no parent), NoChildrenForEphemerals."""

    @abstractmethod
    def get(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[bytes, Stat]]:
        """The node's data and Stat. Raises NoNode, and then sets no watch."""

    @abstractmethod
    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> asyncio.Future[Stat]:
        """Set the node's data; its new Stat. Raises NoNode, BadVersion."""

    @abstractmethod
    def delete(self, path: str, version: int = ANY_VERSION) -> asyncio.Future[None]:
        """Delete a node without children. Raises NoNode, BadVersion, NotEmpty."""

    @abstractmethod
    def exists(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[Stat | None]:
        """The node's Stat, None if there is no such node; the watch is set either way."""

    @abstractmethod
    def children(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[list[str], Stat]]:
        """The names of the node's children, sorted, and its Stat. Raises NoNode, and then sets no watch."""

    @abstractmethod
    def multi(self, ops: Sequence[Op]) -> asyncio.Future[list[Answer]]:
        """All of the operations or none, as one transaction, and their answers.

        Raises the error of the first that fails, with its `index`."""

    @abstractmethod
    def close(self) -> asyncio.Future[None]:
        """End the session: its ephemeral nodes are deleted, its watches forgotten. Further operations are refused."""


class Store(ABC):
    """A store to open sessions with."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready. Raises StoreFailed with one sentence for a person."""

    @abstractmethod
    async def session(self, timeout_ms: int) -> Session:
        """A new session; the store may grant another timeout."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was submitted, then refuse everything with StoreClosed."""

    async def why(self) -> str:
        """Why it cannot be reached, for a person, as far as can be found out: it may take a minute."""
        return ""

    def give_up(self, session: Session) -> str:
        """Declare a session expired if no server will continue it, because the store went back in time, as the last
        `why` found out. Return the reason, "" if it goes on."""
        return ""


def tell(listener: Callable[[T], object], news: T, problem: str) -> None:
    """Call a listener or a watch, whose own mistake must not cost others their news."""
    try:
        listener(news)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler({"message": problem, "exception": error})


def check_path(path: str, *, sequential: bool = False) -> str:
    """The path if ZooKeeper takes it; else BadArguments. A sequential one may end with the slash before its number."""
    whole = path + "0" if sequential else path
    if not whole.startswith("/"):
        raise BadArguments(path, "a path begins with /")
    if whole == "/":
        return path
    for name in whole[1:].split("/"):
        if name in ("", ".", ".."):
            raise BadArguments(path, f"a path has no {name!r} between its slashes and none at its end")
    if not (whole.isascii() and whole.isprintable()) and any(map(_forbidden, whole)):
        raise BadArguments(path, "a path has no control or private characters")
    return path


def check_op(op: Op) -> None:
    """BadArguments if an operation's path or data are not taken."""
    check_path(op.path, sequential=isinstance(op, Create) and op.sequential)
    if isinstance(op, Create | Set) and not (isinstance(op.data, bytes) and len(op.data) <= DATA_BYTES_MAX):
        raise BadArguments(op.path, f"a node holds bytes, {DATA_BYTES_MAX} of them at most")


def check_multi(ops: Sequence[Op]) -> None:
    """BadArguments, with its index, for the first operation that is not taken."""
    for index, op in enumerate(ops):
        try:
            check_op(op)
        except BadArguments as error:
            error.index = index
            raise


def check_request(ops: Sequence[Op], chroot: str = "") -> None:
    """BadArguments if operations are more than a request to ZooKeeper holds."""
    size = sum(OP_BYTES + len(chroot) + len(op.path.encode()) + len(getattr(op, "data", b"")) for op in ops)
    if size > REQUEST_BYTES_MAX:
        raise BadArguments(ops[0].path, f"a request holds {REQUEST_BYTES_MAX} bytes, and this one has {size}")


def _forbidden(character: str) -> bool:
    return (
        character <= "\x1f"
        or "\x7f" <= character <= "\x9f"
        or "\ud800" <= character <= "\uf8ff"
        or character >= "\ufff0"
    )
