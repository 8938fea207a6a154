"""The follower's connection to a leader, and what the plane tells of it."""

from typing import Literal, NamedTuple

from pybroker.core import Plane
from pybroker.core.base.tls_socket import TlsSocket
from pybroker.core.partition_handle import Partition

class FetcherEvent(NamedTuple):
    """What became of a partition that is copied. But for "log_start" it is copied no longer until it is added again."""

    kind: Literal["diverged", "failed", "log_start", "slow", "throttled"]
    """"slow": appends to its log wait for the disk. "throttled": it is behind its leader, and more was copied of such
    partitions than the plane's limit allows."""
    partition: Partition | None  # None with "failed": the leader refused a request as a whole, and the connection ends
    code: int  # "failed": a Kafka code, the leader's or that of our append, or -errno
    epoch: int  # "diverged": the largest epoch up to ours that the leader has; -1 none
    offset: int  # "diverged": where that epoch ends in the leader's log; "log_start": where the leader's log starts
    # "throttled": for how many ms

class Fetcher:
    """Copies partitions from a leader, over a connected socket which is the plane's from now on, without Python.

    Each partition is fetched from its log's end on, and what comes is appended as a follower's (`append_replica`) under
    the leader epoch that it was added with: the replica must follow in that epoch. Fetch 17 in a session (KIP-227), or
    12 where a topic has no id. Its letters come out of plane.take() under `key`: ("fetcher", key, 0, letter) for
    `read`, and ("closed", ...) once, after which nothing is appended any more."""

    key: int
    def __init__(
        self,
        plane: Plane,
        fd: int,
        *,
        replica_id: int,
        broker_epoch: int,
        client_id: str = "",
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        response_bytes_max: int = 10 << 20,
        partition_bytes_max: int = 1 << 20,
        answer_ms_max: int = 30000,
        tls: TlsSocket | None = None,
    ) -> None:
        """fd: non-blocking; where this raises it is still the caller's. answer_ms_max: a leader that is silent for
        longer after a request is given up. Dropping the last reference closes the connection."""
    def add(self, partition: Partition, leader_epoch: int, *, begin: int = 0) -> None:
        """Copy a partition from its log's end on, or from `begin`, if its leader has nothing that is older: what comes
        is appended behind the gap. One that is copied already begins anew. After "closed" it has no effect."""
    def remove(self, partition: Partition, *, wait: bool = True) -> None:
        """Copy it no longer: when this returns nothing is appended any more. It waits for an append that is at the
        disk; without `wait` only none begins any more. One that is not copied is no error."""
    def read(self, letter: bytes) -> FetcherEvent | None:
        """What a "fetcher" letter tells; None if its partition was removed, or added anew, meanwhile. ValueError."""
    def lag(self, partition: Partition) -> int | None:
        """How many records the leader has committed that the log has not, as of the last answer; None before it."""
    def close(self) -> None: ...
    broker_epoch: int  # that requests carry: the czxid of our registration; to be set when we register anew
    partitions: list[Partition]  # those that are copied
    requests: int  # sent so far
    bytes_in: int  # received so far
