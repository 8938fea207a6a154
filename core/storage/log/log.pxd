# The ordered segments of a partition, with the watermarks that readers see.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr
from pybroker.core.base.chain cimport link_t
from pybroker.core.base.counters cimport traffic_t
from pybroker.core.base.files cimport iovec
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.storage.log.backlog cimport work_t
from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.log.leader_epochs cimport epochs_t
from pybroker.core.storage.log.log_dir cimport log_dir_t
from pybroker.core.storage.log.slow_disk cimport slow_t
from pybroker.core.storage.producers.producer_state cimport sequence_t
from pybroker.core.storage.producers.recent_batches cimport recent_t
from pybroker.core.storage.producers.refused_batches cimport refusals_t
from pybroker.core.storage.producers.transactions cimport transactions_t
from pybroker.core.storage.producers.verifications cimport verifications_t
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport segment_t

# Topic configs, under Kafka's names with dots as underscores; times in ms, sizes in bytes, -1 no limit.
cdef struct settings_t:
    int64_t segment_bytes
    int64_t segment_ms
    int64_t segment_jitter_ms
    int64_t segment_index_bytes
    int64_t index_interval_bytes
    int64_t retention_ms
    int64_t retention_bytes
    int64_t max_message_bytes
    int64_t message_timestamp_type   # 0 CreateTime, 1 LogAppendTime
    int64_t file_delete_delay_ms
    int64_t producer_id_expiration_ms
    int64_t flush_messages           # with this many records not on disk, an acknowledgement waits for a sync
    int64_t cleanup_policy           # CLEANUP_DELETE | CLEANUP_COMPACT

cdef enum:
    CLEANUP_DELETE = 1
    CLEANUP_COMPACT = 2

cdef struct listed_t:
    int64_t base_offset
    segment_t* segment

# Immutable except for its end: a roll adds in place while there is room, all other changes publish a new list.
cdef struct segments_t:
    int64_t count
    int64_t capacity
    listed_t* items

# log_start <= last_stable <= high_watermark <= log_end: log_publish ensures it
cdef struct view_t:
    int64_t log_start
    int64_t last_stable      # log_publish computes it
    int64_t high_watermark
    int64_t log_end
    int64_t active_base      # base offset of the active segment
    int64_t active_size      # its bytes up to log_end

cdef struct snapshot_t:       # a snapshot that the flusher has to write
    snapshot_t* next
    int64_t offset
    size_t length
    uint8_t* data

cdef enum:
    SNAPSHOTS_KEPT = 3
    PATH_BYTES_MAX = 2048    # of a log's directory

cdef struct snapshots_t:     # producer snapshots in the directory; under the flush mutex
    int32_t known            # 0: the directory was not read yet
    int32_t count
    int64_t offsets[<int>SNAPSHOTS_KEPT]  # descending

cdef struct path_t:          # a directory of a log: readers may look up names in an earlier one
    path_t* next
    char* text

cdef struct log_t:
    context_t* context
    work_t work              # in the backlog of its log dir
    int32_t refs
    log_dir_t* log_dir       # read by log_dir_of: a move to another log dir changes it, under both mutexes
    link_t listed            # in its log dir's round that closes idle files
    int32_t offline          # a write could not be undone: no more appends
    int32_t deleted          # unpublished: no file may be opened by name any more
    uint32_t view_lock   # the seqlock over `view`
    view_t view
    pthread_mutex_t append_mutex     # one writer
    pthread_mutex_t view_mutex       # for changes of `view`; never held during a file call
    pthread_mutex_t flush_mutex      # one flusher; taken by log_lock_files, before append_mutex if both are needed
    int32_t waiting          # threads that wait for flush_mutex: the flusher lets them go first
    const char* directory    # read by log_directory; the same
    path_t* paths            # its directories, the present one first; freed with the log
    segments_t* segments
    int64_t segments_generation  # grows when segments are unlisted or replaced: their numbers in the list change
    int32_t cleaning         # one compaction at a time
    int64_t generation       # grows when a truncation begins (odd) and ends: slices from an older one are void
    int32_t lent             # slices in use, which a truncation waits for
    int64_t recovery_point   # everything below is on disk
    int64_t synced           # all records below are on disk, but perhaps not their indexes and snapshots
    int64_t synced_base      # base offset + 1 of the segment whose name is durable; under flush_mutex
    int64_t roll_jitter_ms   # of the active segment
    settings_t settings
    sequence_t producers
    transactions_t transactions      # changed under both mutexes, but the high watermark moves it under view_mutex
    bint restoring                   # they are being restored from the log; under view_mutex
    int32_t has_aborts               # a segment may have aborted transactions: readers look for them
    verifications_t verifications    # under append_mutex
    refusals_t refusals      # refused batches that the clients have to send again; under append_mutex
    epochs_t epochs
    recent_t recent          # the last batches
    snapshot_t* unwritten    # under append_mutex
    snapshots_t snapshots
    int32_t named            # its directory's entry in the log dir is durable; under flush_mutex
    traffic_t traffic
    int32_t unread           # an errno: a read failed, or a range of the log could not be sent
    int32_t unread_told      # Python has been notified
    int64_t looked_at        # the log's end when its active file was last found to have a name
    slow_t slow_appends
    int32_t refusing         # the errno of the last append; 0: it succeeded
    slow_t slow_reads
    int32_t repair           # a look-up met a bad index: the flusher rebuilds it
    int64_t suspect          # base offset + 1 of a segment in which a read met an invalid batch; 0 none

cdef struct placed_t:        # a batch that was written, as far as the accounting needs it
    int64_t bytes
    int64_t last_offset
    int64_t max_timestamp

cdef struct found_t:         # the result of a read: a held range of a file
    files_t* files           # NULL: nothing to read
    int64_t position
    int64_t length

cdef inline log_dir_t* log_dir_of(const log_t* l) noexcept nogil:
    """The log dir of a log. Whoever does not hold one of its mutexes may get the one that the log has just left."""
    return <log_dir_t*>load_ptr(<void**>&l.log_dir)


cdef inline const char* log_directory(const log_t* l) noexcept nogil:
    """The directory of a log, likewise."""
    return <const char*>load_ptr(<void**>&l.directory)


cdef inline bint log_offline(const log_t* l) noexcept nogil:
    """True if a write or a sync failed in the log or its log dir: no more appends and flushes."""
    return load_i32(&l.offline) != 0 or load_i32(&log_dir_of(l).failed) != 0


cdef inline int64_t log_durable(const log_t* l) noexcept nogil:
    """The offset below which every record is on disk."""
    return max(load_i64(&l.recovery_point), load_i64(&l.synced))


cdef void log_view(log_t* l, view_t* out) noexcept nogil
cdef void log_change(log_t* l, view_t* out) noexcept nogil
cdef void log_publish(log_t* l, view_t* v) noexcept nogil
cdef void log_publish_high_watermark(log_t* l, int64_t offset) noexcept nogil
cdef int log_set_directory(log_t* l, const char* directory) noexcept nogil
cdef void log_hold(log_t* l) noexcept nogil
cdef void log_drop(log_t* l) noexcept nogil
cdef bint log_lend(log_t* l, int64_t generation) noexcept nogil
cdef void log_take_back(log_t* l) noexcept nogil
cdef void log_lock_files(log_t* l) noexcept nogil
cdef void log_wake_flusher(log_t* l) noexcept nogil
cdef int64_t log_sync_due(log_t* l) noexcept nogil
cdef segments_t* segments_new(int64_t capacity) noexcept nogil
cdef void segments_free(void* list) noexcept nogil
cdef segment_t* log_active(log_t* l) noexcept nogil
cdef int64_t segments_floor(const segments_t* list, int64_t offset) noexcept nogil
cdef bint log_is_open(log_t* l) noexcept nogil
cdef int log_add_segment(log_t* l, segment_t* s) noexcept nogil
cdef int log_write(log_t* l, iovec* v, int n, const placed_t* batches, int count, int64_t bytes) noexcept nogil
cdef void log_note_index(log_t* l, const segment_t* s) noexcept nogil
cdef int log_trust(log_t* l, int status) noexcept nogil
cdef int log_note_unread(log_t* l, int status) noexcept nogil
cdef int64_t segment_limit(const segment_t* s, const view_t* v) noexcept nogil
