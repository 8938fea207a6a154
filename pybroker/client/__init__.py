"""A small client on our own codec: what the command line needs of any broker that speaks Kafka's protocol."""
