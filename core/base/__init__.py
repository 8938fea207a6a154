"""What all of core stands on: atomics, clocks, bounds-checked reading, statuses, threads, file calls, reclamation."""
