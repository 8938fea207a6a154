"""The data plane: network threads, connections, Produce and Fetch without Python, the mailbox to it."""
