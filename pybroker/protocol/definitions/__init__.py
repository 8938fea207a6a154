"""The definitions of all messages that pybroker uses: name, API key, versions, and fields in the order of the wire.

A message is a block: `Name key vFIRST-LAST flex N+` (no key: not an API), then its fields, `name:type`, where

    type     bool i8 i16 i32 i64 f64 str bytes uuid records, or {fields} for a struct.
    []       after a type: an array of this type.
    ?        may be null; ?(7+) in these versions only.
    v3+      the versions of the message with this field; also v0-2, v1. Without it: all versions of its struct.
    tag0     a tagged field with this number, in flexible versions.
    =-1      the default, if it is not zero, empty or, for fields that may be null in all versions, null.

From version N on (`flex N+`) strings, bytes and arrays are compact and each struct ends with a section of tagged
fields (KIP-482). The definitions are those of Kafka 4.3, and of 3.9 for APIs and versions that 4.0 dropped.
"""

from pybroker.protocol.definitions import admin, brokers, connection, data, groups, records, topics, transactions

TEXTS: dict[str, str] = {
    block[: block.index(" ")]: block
    for family in (connection, data, topics, groups, transactions, admin, brokers, records)
    for block in family.MESSAGES.strip().split("\n\n")
}
"""The block of each message, by its name."""
