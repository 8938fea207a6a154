"""The coordinator of consumer groups: their state in memory, and in the log of __consumer_offsets."""
