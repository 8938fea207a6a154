# Opening or creating the directory of a partition.
from pybroker.core.log_dirs cimport LogDirs
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

cdef bytes claim(context_t* context, str directory, bytes topic_id)
cdef Partition open_partition(
    LogDirs broker, str directory, str topic, int partition, bytes topic_id, object config, recovery_t* r)
