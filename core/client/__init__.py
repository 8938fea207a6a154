"""The producer's batches, and a load generator."""
