"""The log dirs of this broker: their checkpoint files, locks, space, damage, and the threads that work on each."""
