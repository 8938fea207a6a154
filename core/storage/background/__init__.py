"""Background work on logs: flushing, syncing, reading cold pages, closing idle files."""
