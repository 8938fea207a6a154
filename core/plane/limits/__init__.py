"""The limits of clients: memory, quotas and rights; muted connections, and connections closed for memory."""
