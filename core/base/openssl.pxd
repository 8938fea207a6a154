# The functions of OpenSSL 1.1.1 and 3.x that connections need, from the same library that Python's ssl module has
# loaded.
from libc.stdint cimport uint8_t, uint64_t

ctypedef int (*bio_read_t)(void* bio, char* into, int n) noexcept nogil
ctypedef int (*bio_write_t)(void* bio, const char* data, int n) noexcept nogil
ctypedef long (*bio_ctrl_t)(void* bio, int command, long number, void* value) noexcept nogil

cdef enum:                       # of openssl/ssl.h and openssl/bio.h; they are part of the ABI
    SSL_ERROR_SSL = 1
    SSL_ERROR_WANT_READ = 2
    SSL_ERROR_WANT_WRITE = 3
    SSL_ERROR_SYSCALL = 5
    SSL_ERROR_ZERO_RETURN = 6
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER = 0x2
    SSL_MODE_AUTO_RETRY = 0x4
    SSL_MODE_RELEASE_BUFFERS = 0x10
    SSL_CTRL_MODE = 33
    SSL_CTRL_SET_TLSEXT_HOSTNAME = 55
    BIO_TYPE_SOURCE_SINK = 0x400
    BIO_CTRL_EOF = 2
    BIO_CTRL_FLUSH = 11
    BIO_FLAGS_READ = 0x1
    BIO_FLAGS_WRITE = 0x2
    BIO_FLAGS_RWS = 0x7
    BIO_FLAGS_SHOULD_RETRY = 0x8

cdef struct openssl_t:
    uint64_t (*SSL_CTX_get_options)(void* context) noexcept nogil
    int (*SSL_CTX_set_ciphersuites)(void* context, const char* names) noexcept nogil
    void* (*SSL_new)(void* context) noexcept nogil
    void (*SSL_free)(void* ssl) noexcept nogil
    void (*SSL_set_bio)(void* ssl, void* read, void* write) noexcept nogil
    void (*SSL_set_accept_state)(void* ssl) noexcept nogil
    void (*SSL_set_connect_state)(void* ssl) noexcept nogil
    int (*SSL_do_handshake)(void* ssl) noexcept nogil
    int (*SSL_read)(void* ssl, void* into, int n) noexcept nogil
    int (*SSL_peek)(void* ssl, void* into, int n) noexcept nogil
    int (*SSL_write)(void* ssl, const void* data, int n) noexcept nogil
    int (*SSL_pending)(void* ssl) noexcept nogil
    int (*SSL_shutdown)(void* ssl) noexcept nogil
    int (*SSL_get_error)(void* ssl, int status) noexcept nogil
    long (*SSL_ctrl)(void* ssl, int command, long number, void* value) noexcept nogil
    int (*SSL_set1_host)(void* ssl, const char* name) noexcept nogil
    void* (*SSL_get0_param)(void* ssl) noexcept nogil
    long (*SSL_get_verify_result)(void* ssl) noexcept nogil
    void* (*SSL_get1_peer_certificate)(void* ssl) noexcept nogil
    const char* (*SSL_get_version)(void* ssl) noexcept nogil
    const void* (*SSL_get_current_cipher)(void* ssl) noexcept nogil
    const char* (*SSL_CIPHER_get_name)(const void* cipher) noexcept nogil
    int (*SSL_session_reused)(void* ssl) noexcept nogil
    int (*X509_VERIFY_PARAM_set1_ip_asc)(void* parameters, const char* address) noexcept nogil
    const char* (*X509_verify_cert_error_string)(long code) noexcept nogil
    int (*i2d_X509)(void* certificate, uint8_t** out) noexcept nogil
    void (*X509_free)(void* certificate) noexcept nogil
    void (*ERR_clear_error)() noexcept nogil
    unsigned long (*ERR_get_error)() noexcept nogil
    const char* (*ERR_reason_error_string)(unsigned long code) noexcept nogil
    int (*BIO_get_new_index)() noexcept nogil
    void* (*BIO_meth_new)(int type, const char* name) noexcept nogil
    int (*BIO_meth_set_read)(void* method, bio_read_t read) noexcept nogil
    int (*BIO_meth_set_write)(void* method, bio_write_t write) noexcept nogil
    int (*BIO_meth_set_ctrl)(void* method, bio_ctrl_t ctrl) noexcept nogil
    void* (*BIO_new)(void* method) noexcept nogil
    void (*BIO_set_data)(void* bio, void* data) noexcept nogil
    void* (*BIO_get_data)(void* bio) noexcept nogil
    void (*BIO_set_init)(void* bio, int is_ready) noexcept nogil
    void (*BIO_set_flags)(void* bio, int flags) noexcept nogil
    void (*BIO_clear_flags)(void* bio, int flags) noexcept nogil

# Return the functions; NULL if they are not available. With the GIL.
cdef const openssl_t* openssl_functions()

# The SSL_CTX of an ssl.SSLContext. TypeError, or ValueError if it is not available.
cdef void* openssl_context(object context) except NULL
