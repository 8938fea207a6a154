"""Connections and channels to brokers, the cluster's metadata, and requests with their answers."""
