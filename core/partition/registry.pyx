"""The published partitions, found by topic name or by topic id.

Two chained tables over the same entries. A reader is pinned and follows the chains without a lock; a writer links a new
entry in front, or unlinks one and retires it, so that a reader that is at it can go on to the next.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from pybroker.core.base.atomic cimport load_ptr, store_i32, store_ptr
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.reclamation cimport reclaim_t, retire
from pybroker.core.partition.partition cimport (
    TOPIC_ID_BYTES, partition_drop, partition_hash, partition_hold, partition_t,
)


cdef inline uint32_t bucket(const uint8_t* key, int32_t length, int32_t index) noexcept nogil:
    return partition_hash(key, length, index) % BUCKETS


cdef registry_t* registry_new() noexcept nogil:
    cdef registry_t* r = <registry_t*>calloc(1, sizeof(registry_t))
    if r != NULL:
        pthread_mutex_init(&r.lock, NULL)
    return r


cdef void free_entry(void* entry) noexcept nogil:
    partition_drop((<registered_t*>entry).partition)
    free(entry)


cdef void registry_free(registry_t* r) noexcept nogil:
    """Free the registry, when there are no readers any more."""
    cdef registered_t* e
    cdef registered_t* after
    cdef int i
    for i in range(BUCKETS):
        e = r.names[i]
        while e != NULL:
            after = e.next_name
            free_entry(e)
            e = after
    pthread_mutex_destroy(&r.lock)
    free(r)


cdef int registry_add(registry_t* r, partition_t* p) noexcept nogil:
    cdef registered_t* e = <registered_t*>calloc(1, sizeof(registered_t))
    cdef uint32_t i = bucket(<const uint8_t*>p.topic, p.topic_length, p.index)
    cdef uint32_t k = bucket(p.topic_id, TOPIC_ID_BYTES, p.index)
    if e == NULL:
        return -ENOMEM
    partition_hold(p)
    e.partition = p
    pthread_mutex_lock(&r.lock)
    e.next_name = r.names[i]
    e.next_id = r.ids[k]
    store_ptr(<void**>&r.names[i], e)
    store_ptr(<void**>&r.ids[k], e)
    store_i32(&p.published, 1)
    pthread_mutex_unlock(&r.lock)
    return 0


cdef void registry_remove(registry_t* r, reclaim_t* q, partition_t* p) noexcept nogil:
    """Unpublish a partition; does nothing if it is not published."""
    cdef registered_t** link = &r.names[bucket(<const uint8_t*>p.topic, p.topic_length, p.index)]
    cdef registered_t* e
    pthread_mutex_lock(&r.lock)
    while link[0] != NULL and link[0].partition != p:
        link = &link[0].next_name
    e = link[0]
    if e != NULL:
        store_i32(&p.published, 0)
        store_ptr(<void**>link, e.next_name)
        link = &r.ids[bucket(p.topic_id, TOPIC_ID_BYTES, p.index)]
        while link[0] != e:
            link = &link[0].next_id
        store_ptr(<void**>link, e.next_id)
        retire(q, e, free_entry)
    pthread_mutex_unlock(&r.lock)


cdef partition_t* registry_by_name(registry_t* r, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    """The published partition with this topic name and index; NULL if there is none. The caller is pinned."""
    cdef registered_t* e = <registered_t*>load_ptr(<void**>&r.names[bucket(topic, length, index)])
    while e != NULL:
        if e.partition.index == index and e.partition.topic_length == length:
            if memcmp(e.partition.topic, topic, length) == 0:
                return e.partition
        e = <registered_t*>load_ptr(<void**>&e.next_name)
    return NULL


cdef partition_t* registry_by_id(registry_t* r, const uint8_t* id, int32_t index) noexcept nogil:
    """The published partition with this topic id and index; NULL if there is none. The caller is pinned."""
    cdef registered_t* e = <registered_t*>load_ptr(<void**>&r.ids[bucket(id, TOPIC_ID_BYTES, index)])
    while e != NULL:
        if e.partition.index == index and memcmp(e.partition.topic_id, id, TOPIC_ID_BYTES) == 0:
            return e.partition
        e = <registered_t*>load_ptr(<void**>&e.next_id)
    return NULL
