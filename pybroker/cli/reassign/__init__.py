"""`pybroker reassign` and `pybroker brokers`: replicas that move to other brokers."""
