"""Backups of topics: taken from a running cluster, verified, and restored into one, on a disk or in an object store."""
