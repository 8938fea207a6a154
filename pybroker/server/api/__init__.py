"""From a frame to its handler and back: the table, the guards, quotas, and requests in slices."""
