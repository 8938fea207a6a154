"""Coordination: a small tree of nodes with ZooKeeper's semantics, stored by ZooKeeper or in a local SQLite file."""
