# The topic configs that core acts on.
from pybroker.core.storage.log.log cimport log_t

cdef int read_settings(log_t* l, object config) except -1
