"""The coordination store as one small interface, with ZooKeeper's semantics.

A tree of nodes, each with data and a Stat; sessions, which own ephemeral nodes; one-shot watches. An operation is
submitted when it is called, and returns a future. The operations of a session take effect in the order of the calls,
awaited or not, so a thousand of them cost one round trip. A write is durable when its future is done. A watch fires
before the answer of any later operation that sees the change (Hunt et al., ZooKeeper, 2010).

The states of a session, as its client knows them from the connection:

    CONNECTED <--> DISCONNECTED   the connection broke: unanswered operations fail with ConnectionLoss, and each of them
                                  may have taken effect; watches are forgotten. Operations submitted now wait for the
                                  next connection
    any of them --> EXPIRED       the store has ended the session; the client learns this when it is connected again.
                                  A caller that must know earlier checks `answered_ms`
    any of them --> CLOSED        by the client

Listeners are called with each new state before operations fail because of it. `commit.py` has writes with a known
outcome.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeVar

from pybroker.clock import boot_ms
from pybroker.coordination.renewals import Renewals
from pybroker.histogram import Times

T = TypeVar("T")

DATA_BYTES_MAX = 1_000_000
"""The size limit of a node's data."""
REQUEST_BYTES_MAX = 1_040_000
"""ZooKeeper's default (jute.maxbuffer) allows a request of just under 1 MiB in all. It ends the connection of a client
that sends more."""
OP_BYTES = 128
"""An upper bound for an operation without its path and data: its kind, version and ACLs."""
ANY_VERSION = -1
ZXID_MAX = 1 << 62
"""A restored node has only lower numbers in its Stat, so that zxids can grow."""
SEQUENCE_DIGITS = 10


class Stat(NamedTuple):
    """The metadata of a node.

    `czxid`, `mzxid` and `pzxid` are the zxids of the transactions that created it, set its data, and last created or
    deleted a child; zxids only grow. `version` counts sets, `cversion` creations and deletions of children.
    `ephemeral_owner` is the session that the node is deleted with, 0 for none. The times may be 0 in the answer to a
    Create of a multi: ZooKeeper does not return them there."""

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
    """The event at a watched node, with ZooKeeper's numbers."""

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
    """The state of a session, as its client knows it."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    CLOSED = "closed"


ENDED = (SessionState.EXPIRED, SessionState.CLOSED)
Listener = Callable[[SessionState], object]
"""Called on the event loop with each new state of a session."""


class Create(NamedTuple):
    """Create a node; the answer is (path, Stat), where the path of a sequential node has its number."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Set a node's data if it is at `version`; the answer is the new Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children if it is at `version`; the answer is None."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Check that a node exists and is at `version`; the answer is None."""

    path: str
    version: int = ANY_VERSION


class NodeCopy(NamedTuple):
    """A node as another store has it."""

    path: str
    data: bytes
    stat: Stat

    @property
    def creates(self) -> int:
        """Children ever created: the next sequential child has this number."""
        return (self.stat.cversion + self.stat.num_children) // 2

    @property
    def latest(self) -> int:
        """The highest zxid in its Stat."""
        return max(self.stat.czxid, self.stat.mzxid, self.stat.pzxid)


Op = Create | Set | Delete | Check
Answer = tuple[str, Stat] | Stat | None
AnyFuture = asyncio.Future[Any]
"""The future of an operation; the result type depends on the operation."""


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
    says = "the node does not exist, or the parent of a new node does not"


class BadVersion(StoreError):
    says = "the node is at another version"


class NotEmpty(StoreError):
    says = "the node has children"


class NoChildrenForEphemerals(StoreError):
    says = "the parent is an ephemeral node, which cannot have children"


class BadArguments(StoreError):
    says = "the arguments are invalid"


class ConnectionLoss(StoreError):
    """The connection broke; it is unknown whether the operation took effect."""

    says = "the connection to the store broke before the answer came"


class SessionExpired(StoreError):
    """The session ended before the operation was done: it had no effect."""

    says = "the session has expired or was closed"


class StoreClosed(StoreError):
    says = "the store is closed"


class StoreFailed(StoreError):
    """The store could not do the operation, for example on a full disk. Nothing of it took effect."""


class StoreRefused(StoreFailed):
    """The store refuses this client's login."""


class StoreDamaged(StoreFailed):
    """The store's file is damaged."""


class Session(ABC):
    """A client of the store, alive while the store hears from it within `timeout_ms`. It owns its ephemeral nodes.

    Every operation may fail with ConnectionLoss, SessionExpired, StoreClosed, StoreFailed, and with BadArguments for an
    invalid path or too much data."""

    id: int
    timeout_ms: int
    """The timeout that the store granted, which may differ from the requested one."""
    state: SessionState
    expired: asyncio.Event
    """Set once the store has ended the session by itself; its ephemeral nodes are gone by then."""

    def __init__(self) -> None:
        self.state = SessionState.CONNECTED
        self.renewals = Renewals()
        self.times = Times()  # from requests to their answers
        self.expired = asyncio.Event()
        self._listeners: list[Listener] = []

    @property
    @abstractmethod
    def answered_ms(self) -> int:
        """The time at which the latest answered request that renews the session was sent, by the clock since boot: any
        request, on etcd a keep-alive. A lease runs from here.

        The store ends the session `timeout_ms` later at the earliest. A session sends enough requests by itself."""

    @property
    def silent(self) -> bool:
        """True if operations have to wait, as the store has not answered for half the timeout, or is disconnected."""
        return self.state is not SessionState.CONNECTED or boot_ms() - self.answered_ms > self.timeout_ms / 2

    def listen(self, listener: Listener) -> None:
        """Call a listener with each new state of the session."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling a listener."""
        self._listeners.remove(listener)

    def _timed(self, future: AnyFuture) -> None:
        """Measure the time until a request is answered."""
        begun = time.perf_counter()
        future.add_done_callback(lambda done: self.times.add(time.perf_counter() - begun))

    def _become(self, state: SessionState) -> None:
        """Enter a state and call the listeners; a session that has ended keeps its state."""
        if state is self.state or self.state in ENDED:
            return
        self.state = state
        if state is SessionState.EXPIRED:
            self.expired.set()
        for listener in list(self._listeners):  # a copy: a listener may remove itself
            tell(listener, state, f"a listener failed on {state.name}")

    @abstractmethod
    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> asyncio.Future[tuple[str, Stat]]:
        """Create a node under an existing parent; sequential appends the parent's counter as ten digits to the path.

        Raises NodeExists, NoNode (no parent), NoChildrenForEphemerals."""

    @abstractmethod
    def get(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[bytes, Stat]]:
        """Return the node's data and Stat. Raises NoNode, and then sets no watch."""

    @abstractmethod
    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> asyncio.Future[Stat]:
        """Set the node's data and return its new Stat. Raises NoNode, BadVersion."""

    @abstractmethod
    def delete(self, path: str, version: int = ANY_VERSION) -> asyncio.Future[None]:
        """Delete a node without children. Raises NoNode, BadVersion, NotEmpty."""

    @abstractmethod
    def exists(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[Stat | None]:
        """Return the node's Stat, None if there is no such node; the watch is set either way."""

    @abstractmethod
    def children(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[list[str], Stat]]:
        """Return the sorted names of the node's children, and its Stat. Raises NoNode, and then sets no watch."""

    @abstractmethod
    def multi(self, ops: Sequence[Op]) -> asyncio.Future[list[Answer]]:
        """Do all of the operations or none, as one transaction. Return their answers.

        Raises the error of the first operation that fails, with its `index`."""

    @abstractmethod
    def close(self) -> asyncio.Future[None]:
        """End the session: its ephemeral nodes are deleted, its watches forgotten. Further operations are refused."""


class Store(ABC):
    """A store that sessions are opened with."""

    name: str = "ZooKeeper"
    """The product, for log lines; stores in this process stand for a ZooKeeper."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready. Raises StoreFailed with one sentence for the operator."""

    @abstractmethod
    async def session(self, timeout_ms: int) -> Session:
        """Return a new session; the store may grant another timeout."""

    @abstractmethod
    async def close(self) -> None:
        """Finish submitted operations, then refuse all others with StoreClosed."""

    async def why(self) -> str:
        """Return the probable reason why the store cannot be reached, for the operator. May take a minute."""
        return ""

    def give_up(self, session: Session) -> str:
        """Declare a session expired if the last `why` found that the store went back in time, so that no server will
        continue the session. Return the reason, "" if the session is not expired."""
        return ""


def tell(listener: Callable[[T], object], news: T, problem: str) -> None:
    """Call a listener or a watch; an exception goes to the loop's handler, so that the others are still called."""
    try:
        listener(news)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler({"message": problem, "exception": error})


def check_path(path: str, *, sequential: bool = False) -> str:
    """Return the path if it is valid in ZooKeeper; a sequential one may end with a slash. Raises BadArguments."""
    whole = path + "0" if sequential else path
    if not whole.startswith("/"):
        raise BadArguments(path, "a path must begin with /")
    if whole == "/":
        return path
    for name in whole[1:].split("/"):
        if name in ("", ".", ".."):
            raise BadArguments(path, f"a name in a path must not be {name!r}")
    if not (whole.isascii() and whole.isprintable()) and any(map(_forbidden, whole)):
        raise BadArguments(path, "a path must not contain control or private characters")
    return path


def check_op(op: Op) -> None:
    """Raise BadArguments if an operation's path or data are invalid."""
    check_path(op.path, sequential=isinstance(op, Create) and op.sequential)
    if isinstance(op, Create | Set) and not (isinstance(op.data, bytes) and len(op.data) <= DATA_BYTES_MAX):
        raise BadArguments(op.path, f"the data of a node must be bytes, at most {DATA_BYTES_MAX} of them")


def check_multi(ops: Sequence[Op]) -> None:
    """Raise BadArguments, with its index, for the first invalid operation."""
    for index, op in enumerate(ops):
        try:
            check_op(op)
        except BadArguments as error:
            error.index = index
            raise


def check_copies(copies: Sequence[NodeCopy]) -> None:
    """Raise BadArguments for the first copy of a node that no store could hold."""
    for each in copies:
        check_op(Set(each.path, each.data))
        if each.stat.ephemeral_owner or each.creates < 0 or not all(0 <= number < ZXID_MAX for number in each.stat):
            raise BadArguments(each.path, f"a node cannot be restored with {each.stat}")


def check_request(ops: Sequence[Op], chroot: str = "") -> None:
    """Raise BadArguments if operations are too large for one request to ZooKeeper."""
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
