# Opening or creating the directory of a partition.
from pybroker.core.log_dirs cimport LogDirs
from pybroker.core.partition_handle cimport Partition
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

cdef Partition open_partition(
    LogDirs broker, str directory, str topic, int partition, bytes topic_id, object config, recovery_t* r)
