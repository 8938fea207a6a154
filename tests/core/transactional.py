"""Batches of transactions for tests: data as clients send it, markers as coordinators do, and both as leaders stamp
them."""

from pybroker.core import build_batch
from tests.core.logs import NOW
from tests.core.slow_log import stamp

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1
INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED = 48, 52
VERIFIED = -1
"""A guard that says that the coordinator need not be asked."""


def data(
    pid: int, sequence: int, count: int = 1, *, epoch: int = 0, at: int = NOW, size: int = 1, key: bytes | None = None
) -> bytes:
    """A transactional batch as its client sends it."""
    records = [(at, key, b"v" * size, [])] * count
    return build_batch(
        records, attributes=TRANSACTIONAL, producer_id=pid, producer_epoch=epoch, base_sequence=sequence
    )


def marker(
    pid: int,
    kind: int,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    at: int = NOW,
    versions: tuple[int, int] = (0, 0),
) -> bytes:
    """A control batch that ends a transaction; another `kind` than ABORT and COMMIT ends none."""
    key = versions[0].to_bytes(2, "big") + kind.to_bytes(2, "big")
    value = versions[1].to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big", signed=True)
    return build_batch(
        [(at, key, value, [])], attributes=TRANSACTIONAL | CONTROL, producer_id=pid, producer_epoch=epoch
    )


def stored(*batches: bytes, base: int = 0, leader_epoch: int = 0) -> bytes:
    """Batches one after another as a leader stamps them, from the offset `base` on."""
    out = b""
    for batch in batches:
        out += stamp(batch, base, leader_epoch)
        base += int.from_bytes(batch[23:27], "big") + 1
    return out
