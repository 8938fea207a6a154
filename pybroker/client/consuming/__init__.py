"""The consumer: positions and the group that shares them, records fetched ahead, and offsets committed."""
