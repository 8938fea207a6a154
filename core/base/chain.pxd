"""Doubly linked lists of what is there already: a link is a member of its owner, so that nothing is allocated, and
whoever stands in the middle leaves at once.

A link of zeros is in no chain. Whoever guards a chain guards the links in it.
"""

from libc.stdint cimport int32_t

cdef struct link_t:
    link_t* next
    link_t* previous
    chain_t* chain               # that it is in; NULL: none
    void* owner                  # what it is a member of

cdef struct chain_t:
    link_t* first
    link_t* last
    int32_t count


cdef inline bint chain_append(chain_t* chain, link_t* link, void* owner) noexcept nogil:
    """Put a link behind all others. One that is in a chain stays where it is: False."""
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
    """Put a link that is in no chain in front of another; behind all others if that is NULL."""
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
    """Take a link out of its chain; one that is in none is no error."""
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
    """Take the first out; its owner, or NULL if there is none."""
    cdef link_t* link = chain.first
    if link == NULL:
        return NULL
    chain_remove(link)
    return link.owner
