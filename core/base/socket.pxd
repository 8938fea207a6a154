# socket(7): the part that is used here.
from pybroker.core.base.files cimport iovec

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct sockaddr:
        unsigned short sa_family
    cdef struct sockaddr_storage:
        pass
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_name
        unsigned int msg_namelen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t send(int fd, const void* data, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr* m, int flags)
    ssize_t recv(int fd, void* into, size_t n, int flags)
    int shutdown(int fd, int how)
    int getpeername(int fd, sockaddr* address, socklen_t* n)
    int accept4(int fd, void* address, void* size, int flags)
    int setsockopt(int fd, int level, int name, const void* value, unsigned int n)
    int AF_INET, AF_INET6, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK, SHUT_RDWR, SOCK_NONBLOCK

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ       # tcp(7): bytes that the peer has not acknowledged, as an int
