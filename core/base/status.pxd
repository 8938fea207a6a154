# What a nogil function answers: 0 done, > 0 a Kafka error code, < 0 an errno with its sign turned.
cdef int raise_status(int status, object what) except -1
