"""Statuses of nogil functions, and raising them as Python exceptions.

A nogil function returns 0 on success, a positive Kafka error code if it refused, and a negated errno if a system call
failed. Python sees `LogError` and `OSError`.
"""

import os


class LogError(Exception):
    """An operation on a log was refused or failed; `code` is the Kafka error code that a client gets for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class MissingFiles(LogError):
    """A log does not begin or end at the expected offset: files are missing, and it is not used without them."""


cdef int raise_status(int status, object what) except -1:
    """Raise the error of a status, with `what` naming the object; 0 passes."""
    if status == 0:
        return 0
    if status > 0:
        raise LogError(status, what)
    raise OSError(-status, os.strerror(-status), what)
