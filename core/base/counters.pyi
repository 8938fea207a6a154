"""The counters of core; any thread may read them at any time."""

from typing import Final, TypedDict

BOUNDS_US: Final[tuple[int, ...]]
"""The exclusive upper end of each bucket of a histogram, in microseconds; one more bucket has all larger values."""

class Histogram(TypedDict):
    sum_us: int
    counts: list[int]

class Api(TypedDict):
    requests: int  # executed natively
    declined: int  # left to Python
    errors: int  # partitions answered with an error
    bytes_in: int  # of requests executed natively
    bytes_out: int  # of their responses
    times: Histogram  # from the turn that read a request to the end of the turn that answered it

class Stages(TypedDict):
    queue: Histogram  # from the turn that read a request to its execution
    local: Histogram  # its execution
    remote: Histogram  # its wait for replicas, the disk or records; 0 without a wait
    send: Histogram  # from the complete response to the kernel's having all of it

class Reactor(TypedDict):
    connections: int
    parked: int  # fetches that wait now
    busy_ns: int
    bytes_in: int  # of all connections, including what Python executes
    bytes_out: int
    turns: Histogram
    Produce: Api
    Fetch: Api
    others: int  # requests of other APIs, all executed in Python
    stages: dict[str, Stages]  # of Produce, FetchConsumer, FetchFollower, and "python": only `send`

class Traffic(TypedDict):
    batches_in: int  # appended by clients and by the broker itself
    records_in: int
    bytes_in: int  # as stored
    bytes_out: int  # of records, sent to clients
    replication_bytes_in: int  # as stored, copied from leaders
    replication_bytes_out: int  # sent to followers
