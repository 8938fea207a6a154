# Look-up of partitions by topic name or id and partition number, without Python.
from libc.stdint cimport int32_t, uint8_t, uint32_t

from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.reclamation cimport reclaim_t
from pybroker.core.partition.partition cimport partition_t

cdef enum:
    BUCKETS = 8192           # of each table; chains stay short up to tens of thousands of partitions

cdef struct registered_t:
    partition_t* partition   # held
    registered_t* next_name
    registered_t* next_id

cdef struct registry_t:
    pthread_mutex_t lock     # for writers; readers are pinned and take no lock
    registered_t* names[<int>BUCKETS]
    registered_t* ids[<int>BUCKETS]

cdef registry_t* registry_new() noexcept nogil
cdef void registry_free(registry_t* r) noexcept nogil
cdef int registry_add(registry_t* r, partition_t* p) noexcept nogil
cdef void registry_remove(registry_t* r, reclaim_t* q, partition_t* p) noexcept nogil
cdef partition_t* registry_by_name(registry_t* r, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil
cdef partition_t* registry_by_id(registry_t* r, const uint8_t* id, int32_t index) noexcept nogil
