# The result of handling a request on a network thread. It is never a Kafka error code or an -errno.
cdef enum verdict_t:
    DONE       # executed: its response is in the connection's output, even if that waits there
    DECLINED   # not executed: Python gets its frame, or the frame that replaces it
    WAITS      # a Fetch, not executed yet: its operation is notified of records, of a reader, or of its deadline
    REFUSED    # close the connection: no memory for a response, or no response that could report the error
    NO_ROOM    # not now: its frame stays, as the mailbox is full, or another Fetch of the connection waits
