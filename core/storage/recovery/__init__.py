"""Recovery at a start: logs are scanned, damage is marked, indexes and producer state are rebuilt."""
