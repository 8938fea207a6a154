"""The state of a log's producers: their sequences, epochs, and refused batches."""
