"""The data plane: network threads, connections, Produce and Fetch without Python, and the mailbox to Python."""
