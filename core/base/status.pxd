# The status of a nogil function: 0 done, > 0 a Kafka error code, < 0 a negated errno.
cdef int raise_status(int status, object what) except -1
