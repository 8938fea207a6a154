# The broker's context with its partitions, for Python.
from pybroker.core.log_dirs cimport LogDirs


cdef class LogManager(LogDirs):
    cdef dict table              # (topic, partition) -> Partition
