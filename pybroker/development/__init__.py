"""A ZooKeeper for development and tests, from the jars of PySpark."""
