"""A log on disk: segments and their indexes, appends and reads, recovery, flushing, retention, producers, epochs."""
