"""Who leads a partition, and since which epoch."""

from libc.stdint cimport int32_t

from pybroker.core.base.atomic cimport store_i32
from pybroker.core.base.error_codes cimport FENCED_LEADER_EPOCH
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.partition.watermark cimport watermark_publish_end
from pybroker.core.storage.leader_epochs cimport epochs_assign
from pybroker.core.storage.log cimport log_t


cdef int partition_lead(partition_t* p, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil:
    """Lead from now on under this epoch, which begins at the log's end. An older epoch than ours is refused.

    With one replica all of its log is committed, whatever the last checkpoint of the high watermark said."""
    cdef log_t* l = p.log
    cdef int status = 0
    pthread_mutex_lock(&l.append_mutex)
    if leader_epoch < p.leader_epoch:
        status = FENCED_LEADER_EPOCH
    else:
        store_i32(&p.leader_epoch, leader_epoch)
        store_i32(&p.partition_epoch, partition_epoch)
        status = epochs_assign(&l.epochs, leader_epoch, l.view.log_end)
        watermark_publish_end(p, l.view.log_end, True)
    pthread_mutex_unlock(&l.append_mutex)
    return status
