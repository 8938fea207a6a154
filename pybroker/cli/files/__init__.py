"""The commands about the files of log dirs: show their batches, find and repair damage."""
