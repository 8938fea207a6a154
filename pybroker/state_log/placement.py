"""Finds the partition of an internal topic that a group or a transactional id is in."""


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapped to 32 bits; an unpaired surrogate is a unit like others.
    """
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(key: str, partitions: int) -> int:
    """The partition of an internal topic for a group or transactional id (Kafka's Utils.abs, not murmur2)."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
