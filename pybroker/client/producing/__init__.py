"""The producer: records into batches, batches into requests, and answers into outcomes."""
