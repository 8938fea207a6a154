"""The views of the console, one module a subject."""
