"""The broker process: sockets, dispatch, background work, and the root that puts everything together."""
