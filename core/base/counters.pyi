"""What core counted: read at any time, by any thread."""

from typing import Final, TypedDict

BOUNDS_US: Final[tuple[int, ...]]
"""Where each bucket of a histogram ends, exclusive, in microseconds; one more bucket has all that is larger."""

class Histogram(TypedDict):
    sum_us: int
    counts: list[int]

class Api(TypedDict):
    requests: int  # executed natively
    declined: int  # left to Python
    errors: int  # partitions whose answer told one
    bytes_in: int  # of requests executed natively
    bytes_out: int  # of their answers
    times: Histogram  # from the turn that read a request to the end of the one that answered it

class Reactor(TypedDict):
    connections: int
    parked: int  # fetches that wait now
    busy_ns: int
    bytes_in: int  # of all connections, whoever executes
    bytes_out: int
    turns: Histogram
    Produce: Api
    Fetch: Api
    others: int  # requests of other APIs, all Python's

class Traffic(TypedDict):
    batches_in: int  # appended by clients and by the broker itself
    records_in: int
    bytes_in: int  # as stored
    bytes_out: int  # of records, sent to clients
    replication_bytes_in: int  # as stored, copied from leaders
    replication_bytes_out: int  # sent to followers
