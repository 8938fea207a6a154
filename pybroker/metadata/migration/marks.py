"""The marks of a migration in both stores, and what a broker makes of them.

    source   /migrating_now  ephemeral, while migrate-store reads: it goes with the process
             /migrated       the address of the store that has the cluster now; written last

    target   /migrated_from  the address of the source and the cluster id, until the copy is verified

No broker starts on a store with one of them, and none begins a new session there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pybroker.config.cluster_settings import StoreWords
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import NoNode, Session
from pybroker.errors import StartError
from pybroker.metadata.node_json import dump, load_object, sound

MIGRATING: Final = "/migrating_now"
MIGRATED: Final = "/migrated"
MIGRATED_FROM: Final = "/migrated_from"
MARKS: Final = (MIGRATING, MIGRATED, MIGRATED_FROM)


class CopyOrigin(NamedTuple):
    """The store and the cluster that an unfinished copy is of."""

    address: str
    cluster_id: str

    def dump(self) -> bytes:
        return dump({"version": 1, "store": self.address, "cluster": self.cluster_id})

    @classmethod
    @sound
    def load(cls, data: bytes) -> CopyOrigin:
        found = load_object(data)
        return cls(str(found["store"]), str(found["cluster"]))


def place(address: str) -> str:
    """The store at an address, in a sentence: a path is that of a lone broker's log dir."""
    return (
        f"the embedded store in {address}" if address.startswith("/") else f"{StoreWords.of(address).name} at {address}"
    )


async def moved_to(session: Session) -> str | None:
    """The address of the store that has this one's cluster now; None if it was not moved. Raises StoreError."""
    try:
        return (await until_answered(lambda: session.get(MIGRATED)))[0].decode(errors="replace")
    except NoNode:
        return None


async def origin(session: Session) -> CopyOrigin | None:
    """The origin of an unfinished copy; None if this store is none. Raises StoreError."""
    try:
        return CopyOrigin.load((await until_answered(lambda: session.get(MIGRATED_FROM)))[0])
    except NoNode:
        return None


async def check(session: Session) -> None:
    """Raise StartError in one sentence if a broker must not use this store. Raises StoreError."""
    if (elsewhere := await moved_to(session)) is not None:
        how = "without zookeeper.connect and etcd.connect"
        if not elsewhere.startswith("/"):
            how = f"with {StoreWords.of(elsewhere).option} {elsewhere}"
        raise StartError(f"this broker's topics were moved to {place(elsewhere)}: start it {how}")
    if (source := await origin(session)) is not None:
        raise StartError(
            f"the store has an unfinished copy of {place(source.address)}: finish it with pybroker migrate-store, as "
            "it was begun, or start the broker with the other store"
        )
    if await until_answered(lambda: session.exists(MIGRATING)) is not None:
        raise StartError("pybroker migrate-store is moving this cluster to another store: start the broker after that")
