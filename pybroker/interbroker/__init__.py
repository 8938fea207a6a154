"""The connections that a broker opens to other brokers of its cluster."""
