"""The wire as data: definitions, the codec that they drive, and the slow truth of record batches."""
