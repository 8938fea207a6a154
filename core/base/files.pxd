# The kernel's file calls that are used here. Calls that tests make fail go through vfs.pyx.
from posix.types cimport off_t

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec* v, int n, off_t position)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* into, size_t n, off_t position)
    int rmdir(const char* path)

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, off_t position, off_t n)
    int sync_file_range(int fd, off_t position, off_t n, unsigned int flags)
    int FALLOC_FL_KEEP_SIZE, SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE
    int posix_fadvise(int fd, off_t position, off_t n, int advice)
    int POSIX_FADV_DONTNEED, POSIX_FADV_RANDOM, POSIX_FADV_WILLNEED

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t position)
    void* mremap(void* old, size_t old_n, size_t n, int flags)
    int munmap(void* at, size_t n)
    int madvise(void* at, size_t n, int advice)
    int PROT_NONE, PROT_READ, PROT_WRITE
    int MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MREMAP_MAYMOVE
    int MADV_DONTNEED, MADV_HUGEPAGE, MADV_RANDOM, MADV_SEQUENTIAL
    void* MAP_FAILED

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char d_name[256]
    DIR* opendir(const char* path)
    dirent* readdir(DIR* d)
    int closedir(DIR* d)
