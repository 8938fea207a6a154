"""Opens or creates the directory of a partition, and repairs what a crash left there.

    partition.metadata   text: "version: 0", "topic_id: <22 characters>"; written before the first record
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strcpy

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.budget cimport budget_is_scarce
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR
from pybroker.core.base.pthread cimport pthread_mutex_init
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport P_METADATA_WRITE, P_PARTITION_CREATE, vfs_mkdir, vfs_replace
from pybroker.core.compact.replace_segments cimport replace_finish
from pybroker.core.log_dirs cimport LogDirs
from pybroker.core.partition.partition cimport TOPIC_BYTES_MAX, partition_new, partition_t
from pybroker.core.partition_handle cimport Partition
from pybroker.core.settings cimport read_settings
from pybroker.core.storage.background.idle_files cimport IDLE_NOW, idle_add, log_close_idle
from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.log.leader_epochs cimport epochs_init, epochs_load
from pybroker.core.storage.log.log cimport (
    CLEANUP_COMPACT, log_drop, log_hold, log_set_directory, log_t, log_wake_flusher,
)
from pybroker.core.storage.log.log_dir cimport log_dir_t
from pybroker.core.storage.producers.producer_state cimport sequence_init
from pybroker.core.storage.recovery.recovery cimport log_recover
from pybroker.core.storage.recovery.recovery_state cimport FAULT_GAP, FAULT_HEAD, FAULT_TAIL, recovery_t

import array
import base64
import contextlib
import os

from pybroker.core.base.status import LogError, MissingFiles

cdef enum:
    DIRECTORY_BYTES_MAX = 2000   # PATH_BYTES_MAX, less room for the names of files

OFFSET_MAX = (1 << 63) - 1 - ((1 << 31) - 1)  # the largest base offset: a segment may have 2^31 - 1 offsets more
LEFTOVERS = (".deleted", ".cleaned", ".tmp")
SWAP = ".swap"


cdef log_t* new_log(context_t* context, log_dir_t* log_dir, bytes directory) except NULL:
    """An empty log with one reference, the caller's."""
    cdef log_t* l
    if len(directory) > DIRECTORY_BYTES_MAX:
        raise ValueError(f"the directory name has {len(directory)} bytes, at most {DIRECTORY_BYTES_MAX} are supported")
    l = <log_t*>calloc(1, sizeof(log_t))
    if l == NULL:
        raise MemoryError()
    l.context = context
    l.work.owner = l
    l.refs = 1
    l.log_dir = log_dir
    if log_set_directory(l, directory) != 0:
        free(l)
        raise MemoryError()
    pthread_mutex_init(&l.append_mutex, NULL)
    pthread_mutex_init(&l.view_mutex, NULL)
    pthread_mutex_init(&l.flush_mutex, NULL)
    sequence_init(&l.producers)
    epochs_init(&l.epochs)
    return l


def list_segments(str directory) -> tuple:
    """The base offsets of the segments in a partition's directory, and of those still to be swapped in (.swap), both
    ascending. Unfinished files of a crash are removed. If a .cleaned was being written, a .swap with a higher base may
    be part of the same undecided replacement (one segment split into several), as in Kafka: it is removed as well."""
    bases, swaps, others, cleaned = [], [], [], None
    for name in os.listdir(directory):
        stem, suffix = os.path.splitext(name)
        base = stem.partition(".")[0]
        named = len(base) == 20 and base.isascii() and base.isdigit() and int(base) <= OFFSET_MAX
        if suffix == ".cleaned" and named:
            cleaned = int(base) if cleaned is None else min(cleaned, int(base))
        if suffix in LEFTOVERS:
            os.unlink(os.path.join(directory, name))
        elif suffix == SWAP and named:
            (swaps if stem == f"{base}.log" else others).append(int(base))
        elif suffix == ".log" and named and stem == base:
            bases.append(int(stem))
    if swaps or others:
        undone = {base for base in swaps if cleaned is not None and base >= cleaned}
        swaps = sorted({*swaps} - undone)
        for base in undone.union(others).difference(swaps):
            for kind in (".log", ".index", ".timeindex", ".txnindex"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, f"{base:020}{kind}{SWAP}"))
    return sorted(bases), swaps


def read_metadata(str directory) -> bytes:
    """The topic id in partition.metadata; empty if the file is missing or has none."""
    try:
        with open(os.path.join(directory, "partition.metadata")) as f:
            for line in f:
                key, _, value = line.partition(":")
                if key.strip() == "topic_id":
                    return base64.urlsafe_b64decode(value.strip() + "==")
    except (FileNotFoundError, ValueError):
        pass
    return b""


cdef str recovered(const recovery_t* r, int64_t end):
    """Describe what start-up repaired in a log that now ends at offset `end`, in one line; empty if nothing."""
    told = []
    if r.high_watermark > end and not r.cut_bytes:
        told.append(f"offsets {end} to {r.high_watermark - 1} are lost: they were not on disk yet")
    if r.cut_bytes:
        name = f"{r.cut_base:020}.log"
        kind = "a torn tail" if not r.aside else "a damaged tail"
        told.append(
            f"cut {r.cut_bytes} bytes of {kind} at position {r.cut_position} of {name}: the log ends at offset {end}")
        if r.aside > 0:
            told.append(f"they are kept in {name}.{r.cut_position}.damaged")
        elif r.aside < 0:
            told.append("they could not be kept in a file")
    if r.rebuilt:
        told.append(f"rebuilt {r.rebuilt} indexes")
    return ", ".join(told)


cdef refuse(Partition p, const recovery_t* r):
    """Raise the error that makes a log unusable."""
    if r.fault == FAULT_HEAD:
        raise MissingFiles(KAFKA_STORAGE_ERROR, f"the first segment is missing from {p.directory}: the log began at "
                           f"offset {r.fault_end}, its first file begins at {r.fault_base}")
    if r.fault == FAULT_TAIL:
        raise MissingFiles(KAFKA_STORAGE_ERROR, f"the last segment is missing from {p.directory}, or its end is: "
                           f"there were records up to offset {r.fault_base}, the log ends at {r.fault_end}")
    what = "a segment is missing" if r.fault == FAULT_GAP else "two segments overlap"
    raise LogError(KAFKA_STORAGE_ERROR, f"{p.directory}: {what}: one ends at offset {r.fault_end}, the next begins at "
                   f"{r.fault_base}; the partition stays offline")


cdef partition_t* new_state(str topic, int partition, bytes topic_id, log_t* log) except NULL:
    """Create the partition's state, which takes over the reference to the log."""
    cdef bytes name = topic.encode()
    cdef partition_t* state
    if len(name) > TOPIC_BYTES_MAX or len(topic_id) != 16:
        log_drop(log)
        raise ValueError(f"a topic name has at most {TOPIC_BYTES_MAX} bytes and a topic id 16")
    state = partition_new(log)
    if state == NULL:
        log_drop(log)
        raise MemoryError()
    strcpy(state.topic, name)
    state.topic_length = len(name)
    memcpy(state.topic_id, <const char*>topic_id, 16)
    state.index = partition
    return state


cdef bytes claim(context_t* context, str directory, bytes topic_id):
    """Create the directory and its metadata, or check that an existing one has this topic id.

    Neither is made durable here: opening the partition after a power cut creates them again."""
    cdef bytes name = os.fsencode(directory)
    cdef const char* c_name = name
    cdef const char* c_path
    cdef const char* c_text
    cdef size_t n
    cdef int status = 0
    if not os.path.isdir(directory):
        with nogil:
            status = vfs_mkdir(context.fs, P_PARTITION_CREATE, c_name)
        raise_status(status, directory)
    known = read_metadata(directory)
    if known and topic_id != bytes(16) and known != topic_id:
        raise LogError(
            INCONSISTENT_TOPIC_ID, f"{directory} belongs to topic id {known.hex()}, not to {topic_id.hex()}")
    if not known:
        encoded = base64.urlsafe_b64encode(topic_id).rstrip(b"=")
        text = b"version: 0\ntopic_id: " + encoded
        path = os.fsencode(os.path.join(directory, "partition.metadata"))
        c_path = path
        c_text = text
        n = len(text)
        with nogil:
            status = vfs_replace(context.fs, P_METADATA_WRITE, c_path, c_text, n, False)
        raise_status(status, directory)
    return known or topic_id


cdef finish_swap(Partition p, int64_t base, list bases):
    """Finish replacing segments by a cleaned one, which a crash had interrupted."""
    cdef int64_t[::1] listed = array.array("q", [*bases, base])
    cdef int64_t n = len(bases)
    cdef int status
    with nogil:
        status = replace_finish(p.log, base, &listed[0], n)
    p.check(status, "open")


cdef recover(Partition p, recovery_t* r):
    cdef log_t* l = p.log
    cdef int64_t* c_bases
    cdef int64_t n
    cdef int status
    cdef bytes epochs = os.fsencode(os.path.join(p.directory, "leader-epoch-checkpoint"))
    cdef const char* c_epochs = epochs
    bases, swaps = list_segments(p.directory)
    for base in swaps:
        finish_swap(p, base, bases)
        bases = list_segments(p.directory)[0]
    n = len(bases)
    r.scanned_bytes = r.cut_bytes = 0
    r.rebuilt = r.fault = r.aside = 0
    c_bases = <int64_t*>malloc(sizeof(int64_t) * (n + 1))
    if c_bases == NULL:
        raise MemoryError()
    for i in range(n):
        c_bases[i] = bases[i]
    with nogil:
        status = epochs_load(&l.epochs, l.context.fs, c_epochs)
        if status == 0 or status == CORRUPT_MESSAGE:  # a torn file is rebuilt from the scanned batches
            status = log_recover(l, c_bases, n, r)
    free(c_bases)
    if r.fault:
        refuse(p, r)
    p.check(status, "open")
    if l.epochs.count:
        p.state.role.leader_epoch = l.epochs.items[l.epochs.count - 1].epoch
    p.recovery = recovered(r, p.log_end_offset)
    log_wake_flusher(l)


cdef Partition open_partition(
    LogDirs broker, str directory, str topic, int partition, bytes topic_id, object config, recovery_t* r):
    """Open or create the directory of a partition. Raises LogError, MissingFiles or OSError if it cannot be used."""
    cdef Partition p = Partition()
    cdef log_t* l
    p.topic = topic
    p.partition = partition
    p.name = f"{topic}-{partition}"
    p.directory = directory
    p.topic_id = claim(broker.context, directory, topic_id)
    l = new_log(broker.context, broker.log_dir(os.path.dirname(directory)), os.fsencode(directory))
    p.state = new_state(topic, partition, p.topic_id, l)
    p.log = l
    log_hold(l)
    p.owner = broker
    p.recovery = ""
    read_settings(l, config)
    r.gaps = r.gaps or peek_i64(&l.settings.cleanup_policy) & CLEANUP_COMPACT
    recover(p, r)
    if budget_is_scarce(&broker.context.fs.budget):
        with nogil:
            log_close_idle(l, IDLE_NOW)  # the first use opens it again
    idle_add(l)
    return p
