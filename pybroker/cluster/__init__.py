"""Decisions: pure functions of what they are told, without I/O, clock or randomness."""
