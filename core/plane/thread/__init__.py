"""A network thread: its turn, reading and executing requests, and its inbox."""
