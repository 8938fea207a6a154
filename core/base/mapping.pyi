"""Ranges of files, mapped for reading."""

class FileMap:
    """`size` bytes of an open file from `position` on, mapped, behind the buffer protocol, for one pass over them.

    The descriptor may be closed afterwards. A page that cannot be read any more, since the file was cut or the disk
    failed, reads as zeros, and `lost` says so: who reads has to ask afterwards, but PartitionBatches, which does by
    itself. Raises OSError (ENOMEM: there are too many maps)."""

    def __init__(self, fd: int, position: int, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def lost(self) -> bool:
        """Whether bytes that were read may be zeros that the file did not have."""
