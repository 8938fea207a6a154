"""Guards remove from requests what the caller is not authorized for, before a handler sees them; one file a family."""
