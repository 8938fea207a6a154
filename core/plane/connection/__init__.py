"""Connections: buffers, waiting requests, disconnection, and the mailbox to Python."""
