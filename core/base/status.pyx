"""Statuses, and the one place in core that raises them.

A nogil function answers 0 when it did its work, a positive Kafka error code when it refused, and a negative errno when
the operating system did. Python sees `LogError` and `OSError`.
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
    """A log does not begin or end where it did: files of it are missing, and it is not used without them."""


cdef int raise_status(int status, object what) except -1:
    """Raise what a status means, `what` saying on which object; 0 passes."""
    if status == 0:
        return 0
    if status > 0:
        raise LogError(status, what)
    raise OSError(-status, os.strerror(-status), what)
