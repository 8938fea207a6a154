"""Decoding batches into columns and encoding columns into batches, without a Python object for each record."""
