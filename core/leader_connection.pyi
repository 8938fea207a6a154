"""The follower's connection to a leader, and the events of its partitions."""

from typing import Literal, NamedTuple

from pybroker.core import Plane
from pybroker.core.base.tls_socket import TlsSocket
from pybroker.core.partition_handle import Partition

class FetcherEvent(NamedTuple):
    """An event of a partition that is fetched. After any event but "log_start" it is not fetched until it is added
    again."""

    kind: Literal["diverged", "failed", "log_start", "slow", "throttled"]
    """"slow": appends to its log wait for the disk. "throttled": the partition is behind its leader, and more was
    copied than the plane's replication limit allows."""
    partition: Partition | None  # None with "failed": the leader refused the whole request, and the connection ends
    code: int  # "failed": an error code of the leader or of our append, or -errno
    epoch: int  # "diverged": the largest epoch up to ours that the leader has; -1 none
    offset: int  # "diverged": the end offset of that epoch at the leader; "log_start": the leader's log start offset;
    # "throttled": for how many ms

class LeaderConnection:
    """Fetches partitions from a leader and appends to them, without Python, over a connected socket that the plane
    takes over.

    Each partition is fetched from its log end offset, and the batches are appended as a follower's (`append_replica`)
    under the leader epoch that it was added with: the replica must follow in that epoch. Fetch version 17 in a session
    (KIP-227), or 12 if a topic has no id. plane.take() returns its letters under `key`: ("fetcher", key, 0, letter) for
    `read`, and once ("closed", ...), after which nothing is appended any more."""

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
        """fd: non-blocking; if this raises, the socket is still the caller's. answer_ms_max: the connection is closed
        if the leader does not answer a request for longer. Dropping the last reference closes the connection."""
    def add(self, partition: Partition, leader_epoch: int, *, begin: int = 0) -> None:
        """Fetch a partition from its log end offset, or from `begin` if the leader has no older records: these are
        appended after the gap. A partition that is fetched already begins anew. No effect after "closed"."""
    def remove(self, partition: Partition, *, wait: bool = True) -> None:
        """Stop fetching a partition: when this returns nothing is appended any more. It waits for an append that is
        writing to the disk; without `wait` it only prevents new ones. No error for a partition that is not fetched."""
    def read(self, letter: bytes) -> FetcherEvent | None:
        """Decode a "fetcher" letter; None if its partition was removed, or added anew, meanwhile. ValueError."""
    def lag(self, partition: Partition) -> int | None:
        """The number of records below the leader's high watermark, as of its last response, that this log lacks; None
        before that response."""
    def close(self) -> None: ...
    broker_epoch: int  # sent with requests: the czxid of our registration; set it when the broker registers again
    partitions: list[Partition]  # the fetched ones
    requests: int  # sent so far
    bytes_in: int  # received so far
