"""One value that is an Avro record, decoded."""

import io
from typing import TYPE_CHECKING, Final

from pybroker.avro.framing import framed_id
from pybroker.avro.values import Avro, Document

if TYPE_CHECKING:
    from pybroker.avro.resolution import Resolver

NO_AVRO: Final = "the value is not an Avro record of the schema"


def decode_avro(
    schema: Avro, value: bytes | None, resolver: "Resolver | None" = None, *, advice: str
) -> tuple[Document | None, str | None]:
    """Return (row, None) or (None, why not) for a record of the schema, or of the one that its frame names to a
    resolver. advice: what to do about a value that seems to be framed, where there is no resolver.

    Without a resolver the whole value is the record: a valid record may begin with a 0 and four bytes, as a frame does,
    and refusing it would lose records. A framed value that happens to be a valid record becomes a wrong row. Raises
    KafkaError if the registry does not answer."""
    import fastavro

    if value is None:
        return None, "the record has no value"
    if resolver is not None:
        return resolver.decode(value)
    source = io.BytesIO(value)
    try:
        row = fastavro.schemaless_reader(source, schema, None)
    except Exception:  # malformed bytes fail in as many ways as there are types
        row = None
    if isinstance(row, dict) and source.tell() == len(value):
        return row, None
    number = framed_id(value)
    return None, NO_AVRO if number is None else f"{NO_AVRO}; if it is framed with schema id {number}, {advice}"
