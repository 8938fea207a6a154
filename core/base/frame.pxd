# A frame of the Kafka protocol: its size, then the request header, the same for all APIs and versions (KIP-482 adds
# tags after the client id). A response header has only the correlation id.
cdef enum:
    SIZE_BYTES = 4                                # i32: bytes after it

cdef enum:                                        # of a request, after its size
    AT_API_KEY = 0                                # i16
    AT_API_VERSION = AT_API_KEY + 2               # i16
    AT_CORRELATION_ID = AT_API_VERSION + 2        # i32
    AT_CLIENT_ID_LENGTH = AT_CORRELATION_ID + 4   # i16; -1 null
    AT_CLIENT_ID = AT_CLIENT_ID_LENGTH + 2        # never compact

cdef enum:
    FRAME_BYTES_MIN = AT_CLIENT_ID_LENGTH         # a smaller frame is not a request
