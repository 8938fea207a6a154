# The broker's context as Python holds it.
from pybroker.core.log_dirs cimport LogDirs


cdef class Broker(LogDirs):
    cdef dict table              # (topic, partition) -> Partition
