# The leader epochs of one partition and the start offset of each (KIP-101).
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.vfs cimport vfs_t

cdef struct epoch_t:
    int64_t start
    int32_t epoch

cdef struct epochs_t:
    epoch_t* items           # both columns ascend
    int32_t count
    int32_t capacity
    bint dirty               # the file lacks the last change
    pthread_mutex_t lock     # guards all above; not held during file calls

cdef void epochs_init(epochs_t* e) noexcept nogil
cdef void epochs_free(epochs_t* e) noexcept nogil
cdef int epochs_assign(epochs_t* e, int32_t epoch, int64_t start) noexcept nogil
cdef void epochs_cut_tail(epochs_t* e, int64_t end) noexcept nogil
cdef void epochs_cut_head(epochs_t* e, int64_t start) noexcept nogil
cdef int32_t epochs_end(epochs_t* e, int32_t epoch, int64_t log_end, int64_t* end) noexcept nogil
cdef int32_t epochs_at(epochs_t* e, int64_t offset) noexcept nogil
cdef int epochs_load(epochs_t* e, vfs_t* fs, const char* path) noexcept nogil
cdef int epochs_copy(epochs_t* e, epoch_t** items, int32_t* count) noexcept nogil
cdef int epochs_take(epochs_t* e, char** text, size_t* n) noexcept nogil
cdef void epochs_retry(epochs_t* e) noexcept nogil
