"""The group coordinator: consumer groups in memory, and stored in the log of __consumer_offsets."""
