"""Parts of a broker on its embedded store: its start, the log dirs of its partitions, its way to a cluster."""
