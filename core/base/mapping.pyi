"""Ranges of files, mapped for reading."""

class FileMap:
    """`size` bytes of an open file from `position` on, mapped, behind the buffer protocol, for one pass over them.

    The descriptor may be closed afterwards. The file may be written meanwhile, and a page that cannot be read any more,
    since the file was cut or the disk failed, reads as zeros: `stale` says so, and who reads has to ask it afterwards,
    but Columns, which do by themselves. Raises OSError (EBUSY: it was changed a moment ago; ENOMEM: there are too many
    maps)."""

    def __init__(self, fd: int, position: int, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def stale(self) -> bool:
        """Whether bytes that were read may not be what was in the file."""
