"""A log: its ordered segments, watermarks and leader epochs, its log dir, appends and reads."""
