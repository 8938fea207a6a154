"""Log compaction: the map of each key's last offset, filtering batches, and replacing segments."""
