# Quota buckets for the rest of core's Python API.
from pybroker.core.plane.limits.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.limits.quotas cimport quotas_t


cdef class QuotaBucket:
    cdef quota_bucket_t* state

# The quotas given by Python as (number, client id, produce, fetch, request), on the heap, for quotas_free(). None:
# NULL.
cdef quotas_t* quotas_told(object told) except? NULL
