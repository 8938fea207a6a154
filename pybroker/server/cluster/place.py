"""The interface of a broker's membership in its cluster, which differs for a lone broker and one of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pybroker.coordination.store import Session, StoreDamaged
from pybroker.decisions.image import LiveBroker
from pybroker.metadata.identity import Identity
from pybroker.model import TopicPartition
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.opening import Assignments
from pybroker.replication.replicas import Replicas
from pybroker.security.credentials import Credentials
from pybroker.server.cluster.control_plane import ControlPlane, Lines

if TYPE_CHECKING:
    from pybroker.server.metrics.export import Exporter

T = TypeVar("T")
Serve = Callable[[], Awaitable[object]]
"""Begins to accept clients."""


class Recovered(NamedTuple):
    """The result of a lone broker's recovery; the defaults are for a broker of a cluster."""

    assignments: Assignments | None = None
    deleted: Collection[str] = ()
    """Topics whose deletion an earlier run began, and this one finishes."""
    has_topics: bool = False


class ClusterPlace(Protocol):
    """Joins and leaves the cluster, in this order: open, settle, recover, join; hand_over, leave, close."""

    @property
    def cautious(self) -> bool:
        """True if the broker replaces dynamic settings that cannot be read by cautious ones."""

    @property
    def lines(self) -> Lines | None:
        """Opens connections to other brokers; None at a lone broker."""

    @property
    def replica_listener(self) -> int:
        """The number of the listener that followers connect to; -1 at a lone broker."""

    @property
    def rack(self) -> str | None:
        """The rack of the broker if consumers fetch from the replica in their rack; None if they fetch from leaders."""

    @property
    def session(self) -> Session:
        """The current session of the store, which may have ended."""

    @property
    def epoch(self) -> int:
        """The broker epoch of the current registration; -1 before the first."""

    @property
    def give_up(self) -> Set[str]:
        """Ids of log dirs and names of partitions whose missing data is given up."""

    async def open(self, dirs: list[LogDir]) -> None:
        """Connect to the store, and begin a session. Raises StartError, StartLeft, StoreError."""

    async def settle(self) -> Identity:
        """Settle the broker's identity, and write it into the log dirs; missing log dirs are added to the list. Raises
        KafkaError, OSError, StoreError."""

    async def do(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do work in a session, and again if the session expires. Raises as `work`, StartLeft."""

    async def recover(self, replicas: Replicas, current: Callable[[], LiveBroker]) -> Recovered:
        """Reconcile the store with the log dirs, at a lone broker. `current` returns the broker by its settings. Raises
        StartError, KafkaError, StoreError."""

    async def join(self, control: ControlPlane, serve: Serve) -> None:
        """Register, open the logs, serve, and stand for election. Raises StartError, StartLeft, StoreError."""

    def told(self, broker_epoch: int, partitions: list[TopicPartition]) -> None:
        """Note that the controller assigned roles for these partitions, under this broker epoch."""

    def check_account(self, credentials: Credentials) -> None:
        """Warn if other brokers will not accept this broker's login or certificate."""

    def show(self, exporter: Exporter, control: ControlPlane) -> None:
        """Add the metrics of the cluster, as this broker sees it."""

    async def renew(self) -> None:
        """Apply changed settings to the registration. Raises StoreError."""

    def leave_start(self) -> None:
        """Abort a start that waits for ZooKeeper or other brokers, with StartLeft."""

    async def hand_over(self) -> None:
        """Move leadership to other brokers, and leave, before connections of clients are closed."""

    async def leave(self) -> None:
        """Stop the control plane. Again does nothing."""

    def set_aside(self, problem: StoreDamaged) -> None:
        """Rename a damaged store, so that the next start creates a new one. Raises StartError if other brokers use the
        store, OSError."""

    async def close(self, *, session: bool = True) -> None:
        """Close the session and the store. If `session` is False its ephemeral nodes stay until the session expires.
        Raises StoreError."""


class StartLeft(Exception):
    """A stop was requested while the broker's start waited for ZooKeeper or other brokers."""
