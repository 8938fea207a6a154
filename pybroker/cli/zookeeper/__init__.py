"""The commands that connect to ZooKeeper without a broker, and the one that starts a ZooKeeper."""
