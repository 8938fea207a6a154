"""Stores for development and tests: a ZooKeeper from the jars of PySpark, and an etcd from a wheel or from PATH."""
