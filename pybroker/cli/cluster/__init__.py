"""`pybroker cluster`: the state of a cluster, as a table, as an exit code, and as the order of a rolling restart."""
