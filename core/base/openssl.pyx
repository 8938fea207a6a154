"""OpenSSL without its headers: the functions of the library that Python's own ssl module is linked to.

Two copies of OpenSSL in a process would not know each other's contexts. So the symbols are looked up at run time
through _ssl itself, whose contexts (certificates, ciphers, trust) are used: TLS is configured in Python. If a Python
does not export the symbols (some statically linked ones), or lays out a context in another way, the functions are
unavailable.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.string cimport memset

import sys

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* path, int flags)
    void* dlsym(void* handle, const char* name)
    int RTLD_NOLOAD, RTLD_NOW

cdef enum:
    NOT_LOOKED
    FOUND
    MISSING

LAYOUT_KNOWN = ((3, 11), (3, 14))
"""The versions of CPython, first and last, whose SSLContext begins with the pointer to its SSL_CTX."""

cdef int looked = NOT_LOOKED
cdef openssl_t functions
NAMES = (
    "SSL_CTX_get_options", "SSL_CTX_set_ciphersuites", "SSL_new", "SSL_free", "SSL_set_bio", "SSL_set_accept_state",
    "SSL_set_connect_state",
    "SSL_do_handshake", "SSL_read", "SSL_peek", "SSL_write", "SSL_pending", "SSL_shutdown", "SSL_get_error", "SSL_ctrl",
    "SSL_set1_host", "SSL_get0_param", "SSL_get_verify_result", "SSL_get1_peer_certificate", "SSL_get_version",
    "SSL_get_current_cipher", "SSL_CIPHER_get_name", "SSL_session_reused", "X509_VERIFY_PARAM_set1_ip_asc",
    "X509_verify_cert_error_string", "i2d_X509", "X509_free", "ERR_clear_error", "ERR_get_error",
    "ERR_reason_error_string", "BIO_get_new_index", "BIO_meth_new", "BIO_meth_set_read", "BIO_meth_set_write",
    "BIO_meth_set_ctrl", "BIO_new", "BIO_set_data", "BIO_get_data", "BIO_set_init", "BIO_set_flags", "BIO_clear_flags",
)
"""The names in the order of openssl_t, which has a pointer for each and nothing else."""
OLDER = {"SSL_get1_peer_certificate": "SSL_get_peer_certificate"}
"""The names that differ in 1.1.1."""


cdef bint look_up_all() except -1:
    """Fill the table; False if a name is missing."""
    cdef void** slots = <void**>&functions
    cdef bytes path
    cdef bytes symbol
    cdef void* handle
    cdef int i = 0
    import _ssl                  # here: few processes need it, and loading takes long
    path = (getattr(_ssl, "__file__", None) or "").encode()
    handle = dlopen(<const char*>path if path else NULL, RTLD_NOW | RTLD_NOLOAD)
    if handle == NULL or len(NAMES) * sizeof(void*) != sizeof(openssl_t):
        return False
    for name in NAMES:
        symbol = name.encode()
        slots[i] = dlsym(handle, <const char*>symbol)
        if slots[i] == NULL and name in OLDER:
            symbol = OLDER[name].encode()
            slots[i] = dlsym(handle, <const char*>symbol)
        if slots[i] == NULL:
            return False
        i += 1
    return True


cdef inline void* first_field(object context):
    """The field after the object head: the SSL_CTX of a context, in the versions of LAYOUT_KNOWN."""
    return (<void**>(<char*><PyObject*>context + sizeof(PyObject)))[0]


cdef bint layout_is_known() except -1:
    """True if contexts have the expected layout: OpenSSL, called with that pointer, has to report the options Python
    does."""
    if sys.implementation.name != "cpython" or not LAYOUT_KNOWN[0] <= sys.version_info[:2] <= LAYOUT_KNOWN[1]:
        return False
    import ssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    cdef void* found = first_field(context)
    cdef uint64_t said = int(context.options) & 0xFFFFFFFF
    return found != NULL and functions.SSL_CTX_get_options(found) & 0xFFFFFFFF == said


cdef const openssl_t* openssl_functions():
    global looked
    if looked == NOT_LOOKED:
        looked = FOUND if look_up_all() and layout_is_known() else MISSING
        if looked == MISSING:
            memset(&functions, 0, sizeof(functions))
    return &functions if looked == FOUND else NULL


cdef void* openssl_context(object context) except NULL:
    import ssl
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(f"context must be an ssl.SSLContext, not {type(context).__name__}")
    if openssl_functions() == NULL:
        raise ValueError("this Python's OpenSSL cannot be used from outside its ssl module")
    return first_field(context)
