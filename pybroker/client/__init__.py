"""The client library: producers, consumers and admin clients, for any broker that speaks Kafka's protocol."""
