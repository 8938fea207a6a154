"""Produce and Fetch without Python: decoding, execution, and responses."""
