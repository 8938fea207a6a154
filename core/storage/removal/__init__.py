"""Removal at the ends of a log: retention removes its head, truncation its tail."""
