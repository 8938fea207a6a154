"""The foundations of core: atomics, clocks, bounds-checked reading, statuses, threads, file calls, reclamation."""
