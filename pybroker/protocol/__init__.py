"""Kafka's wire protocol: message definitions, the codec built from them, and record batches in pure Python."""
