"""Coordination: a small tree of nodes with ZooKeeper's semantics, kept by ZooKeeper or in a file of our own."""
