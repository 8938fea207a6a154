"""Partitions: what an append must pass, who watches, what readers see, and how one is found by name or id."""
