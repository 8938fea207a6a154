"""The logs that coordinators keep their state in: partitions of internal, compacted topics, led by this broker."""
