# Buckets of quotas as the rest of the wall sees them.
from pybroker.core.plane.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.quotas cimport quotas_t


cdef class QuotaBucket:
    cdef quota_bucket_t* state

# (number, client id, produce, fetch, request) of Python, on the heap, for quotas_free(). NULL for none.
cdef quotas_t* quotas_told(object told) except? NULL
