"""Ranges of files, mapped for reading."""

class FileMap:
    """`size` bytes of an open file from `position` on, mapped, behind the buffer protocol, for one pass over them.

    The descriptor may be closed afterwards. A page that cannot be read any more, as the file was truncated or the disk
    failed, reads as zeros; another process may also write the file meanwhile. Check `stale` after reading; Columns does
    so by itself. Raises OSError (EBUSY: the file was changed a moment ago; ENOMEM: too many maps)."""

    def __init__(self, fd: int, position: int, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def stale(self) -> bool:
        """True if bytes that were read may differ from the file's."""
