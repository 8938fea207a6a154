"""Avro records and the schemas that they were written by: what Spark's pipeline and `frames` both read."""
