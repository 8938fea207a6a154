"""Records as columns, of NumPy and of Arrow: in memory, and out of the files of a log directory."""
