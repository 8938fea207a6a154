# Responses from Python, on their way to a reactor.
from pybroker.core.plane.connection.conn cimport note_t

cdef int add_answer(note_t* n, object parts) except -1
