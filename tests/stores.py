"""The stores that a cluster of tests can be on, ZooKeeper and etcd, and how a broker or a command names one of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pybroker.development.etcd_server import Etcd
from pybroker.development.zookeeper_server import TICK_MS, ZooKeeper

AnyStore = ZooKeeper | Etcd
STORES = ("zookeeper", "etcd")
ALONE = {
    "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1, "zookeeper.session.timeout.ms": 2000,
}  # fmt: skip
"""Settings of the only broker of a cluster. The session is short, as a killed broker waits for its end to start again.
"""


def new_store(kind: str, servers: int = 1, home: Path | None = None, *, tick_ms: int = TICK_MS) -> AnyStore:
    """Start a store; `home` keeps its data. `tick_ms`: half of ZooKeeper's shortest session; etcd's is 2 s."""
    data_dir = None if home is None else str(home)
    if kind == "etcd":
        return Etcd(servers, data_dir=data_dir)
    return ZooKeeper(servers, data_dir=data_dir, tick_ms=tick_ms)


def place_of(store: AnyStore, chroot: str, servers: str = "") -> str:
    """The value of zookeeper.connect or etcd.connect; `servers`: others than the store's own, HOST:PORT,..."""
    if isinstance(store, Etcd):
        return f"{store.url.partition('://')[0]}://{servers or store.connect}{chroot}"
    return (servers or store.connect) + chroot


def setting_of(store: AnyStore, chroot: str, servers: str = "") -> dict[str, object]:
    """The setting of a broker on this store."""
    return {f"{kind_of(store)}.connect": place_of(store, chroot, servers)}


def alone_on(store: AnyStore | None, data_dir: Path) -> dict[str, object]:
    """The settings of a broker that is alone in a cluster of this store; the same again for the same data directory.
    Without a store, those of a lone broker."""
    return {} if store is None else {**ALONE, **setting_of(store, f"/{hashlib.sha1(bytes(data_dir)).hexdigest()}")}


def option_of(store: AnyStore, chroot: str) -> tuple[str, str]:
    """The option of a command that reaches this store itself."""
    return f"--{kind_of(store)}", place_of(store, chroot)


def kind_of(store: AnyStore) -> str:
    return "etcd" if isinstance(store, Etcd) else "zookeeper"
