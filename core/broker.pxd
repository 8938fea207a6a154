# The broker's context as Python holds it.
from libc.stdint cimport int64_t

from pybroker.core.handles cimport Partition
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.storage.context cimport context_t
from pybroker.core.storage.log cimport log_t
from pybroker.core.storage.log_dir cimport log_dir_t
from pybroker.core.storage.recovery cimport recovery_t


cdef class Broker:
    cdef context_t* context
    cdef dict table              # (topic, partition) -> Partition
    cdef dict flushers           # log dir -> its flusher's thread
    cdef bint closed
    cdef int pid                 # of the process that made it
    cdef object lock
    cdef log_dir_t* log_dir(self, str path) except NULL
    cdef partition_t* _new_state(self, str topic, int partition, bytes topic_id, log_t* log) except NULL
    cdef _claim(self, str directory, bytes topic_id)
    cdef _finish_swap(self, Partition p, int64_t base, list bases)
    cdef _recover(self, Partition p, recovery_t* r)
