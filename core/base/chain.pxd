"""Doubly linked intrusive lists: the link is a member of its owner, so nothing is allocated and removal is O(1).

A zeroed link is in no chain. The lock of a chain also guards the links in it.
"""

from libc.stdint cimport int32_t

cdef struct link_t:
    link_t* next
    link_t* previous
    chain_t* chain               # the chain it is in; NULL: none
    void* owner                  # the object it is a member of

cdef struct chain_t:
    link_t* first
    link_t* last
    int32_t count


cdef inline bint chain_append(chain_t* chain, link_t* link, void* owner) noexcept nogil:
    """Append a link; False, and nothing happens, if it already is in a chain."""
    if link.chain != NULL:
        return False
    link.chain = chain
    link.owner = owner
    link.next = NULL
    link.previous = chain.last
    if chain.last != NULL:
        chain.last.next = link
    else:
        chain.first = link
    chain.last = link
    chain.count += 1
    return True


cdef inline void chain_insert(chain_t* chain, link_t* before, link_t* link, void* owner) noexcept nogil:
    """Insert a link, which is in no chain, before another; append it if `before` is NULL."""
    if before == NULL:
        chain_append(chain, link, owner)
        return
    link.chain = chain
    link.owner = owner
    link.next = before
    link.previous = before.previous
    if before.previous != NULL:
        before.previous.next = link
    else:
        chain.first = link
    before.previous = link
    chain.count += 1


cdef inline void chain_remove(link_t* link) noexcept nogil:
    """Take a link out of its chain; a link in no chain is no error."""
    cdef chain_t* chain = link.chain
    if chain == NULL:
        return
    if link.previous != NULL:
        link.previous.next = link.next
    else:
        chain.first = link.next
    if link.next != NULL:
        link.next.previous = link.previous
    else:
        chain.last = link.previous
    chain.count -= 1
    link.chain = NULL


cdef inline void* chain_take(chain_t* chain) noexcept nogil:
    """Remove the first link; its owner, or NULL if the chain is empty."""
    cdef link_t* link = chain.first
    if link == NULL:
        return NULL
    chain_remove(link)
    return link.owner
