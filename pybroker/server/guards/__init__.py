"""What callers may not do is taken out of their requests before a handler sees them: one file per family of APIs."""
