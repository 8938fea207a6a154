"""Blocks: memory that core filled and Python reads in place."""

class Block:
    """Bytes from core, behind the buffer protocol: read-only, freed with the last view of them."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
