"""Log compaction: which offset a key's last record has, what stays of a batch, and the segment that takes its place."""
