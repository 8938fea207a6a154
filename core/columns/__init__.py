"""Batches into columns and columns into batches, without a Python object a record."""
