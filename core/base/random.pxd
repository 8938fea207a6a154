# getrandom(2).
cdef extern from "<sys/random.h>" nogil:
    ssize_t getrandom(void* into, size_t n, unsigned int flags)
