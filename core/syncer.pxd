# Group commit: a thread of a log dir makes durable what its acknowledgements wait for; another one reads what is cold.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.backlog cimport backlog_t
from pybroker.core.budget cimport budget_t
from pybroker.core.chain cimport chain_t
from pybroker.core.quiesce cimport pthread_mutex_t
from pybroker.core.worker cimport task_t, worker_t

ctypedef void (*synced_fn)(sync_t* s) noexcept nogil

cdef struct sync_t:          # somebody waits for a log to be durable up to an offset
    task_t task
    sync_t* next             # for who was told
    void* log                # held; its log_t
    int64_t end
    int32_t status           # 0, or why it is not
    synced_fn done           # called by the syncer's thread, which then forgets it; NULL: nobody waits
    void* owner
    uint8_t* answer          # where a failure is told, to a client that speaks this version
    int16_t version

cdef struct closing_t:       # of files that nobody uses, where descriptors are scarce
    task_t task
    int32_t asked            # it waits for the closer
    int32_t stopping
    budget_t* budget
    pthread_mutex_t lock     # guards the chain
    chain_t logs             # of the log dir, the next one to be looked at first

cdef struct syncer_t:        # of one log dir
    syncer_t* next
    worker_t worker
    worker_t reader
    backlog_t backlog        # of its flusher
    worker_t closer
    closing_t closing
    int32_t failed           # an errno: the disk failed, and nothing in the log dir is trusted any more
    int64_t unread           # reads that failed
    char directory[<int>2048]

cdef syncer_t* syncer_new(const char* directory, budget_t* budget) noexcept nogil
cdef void syncer_stop(syncer_t* s) noexcept nogil
cdef void syncer_free(syncer_t* s) noexcept nogil
cdef sync_t* sync_new(void* log, int64_t end, synced_fn done, void* owner, uint8_t* answer) noexcept nogil
cdef void sync_free(sync_t* s) noexcept nogil
cdef void sync_put(sync_t* s) noexcept nogil
