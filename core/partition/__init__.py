"""Partitions: appends and their checks, watchers, watermarks, roles, and look-up by name or id."""
