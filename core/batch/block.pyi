"""Blocks: what core made and Python reads in place."""

class Block:
    """Bytes that core made, behind the buffer protocol: read-only, freed with the last view of them."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
