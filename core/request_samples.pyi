"""Samples of the requests that a plane executes, for tracing."""

from typing import Literal, NamedTuple

from pybroker.core import Plane

class RequestSample(NamedTuple):
    """A request with its stages, in ns: from the turn that read it to its execution, its execution, its wait for
    replicas, the disk or records, and from its complete response to the kernel's having all of it."""

    kind: Literal["Produce", "FetchConsumer", "FetchFollower"]
    version: int
    correlation_id: int
    client_id: bytes | None  # the first 256 bytes
    topics: int
    topic: str  # the first one; empty without any
    partitions: int  # of a Fetch in a session: those that it looked at
    errors: int  # partitions with an error
    error_code: int  # of the first of them
    request_bytes: int
    response_bytes: int  # 0: there was no response
    read_ns: int  # of the clock of time.monotonic_ns()
    queue_ns: int
    local_ns: int
    remote_ns: int
    send_ns: int

class RequestSamples:
    """Has each reactor of a plane sample one Produce, one Fetch of consumers and one of followers an interval, the
    first that comes. A sample is complete when its response is sent, and kept until it is taken, up to 256 for each
    reactor."""

    def __init__(self, plane: Plane, interval_ns: int) -> None:
        """Raises ValueError for an interval that is not positive."""
    def take(self) -> list[RequestSample]:
        """Take the samples that are complete; by one thread."""
    def stop(self) -> None:
        """Begin no more samples."""
