"""Keys and values that are framed with the id of a schema in a registry, as JSON.

Schemas are cached for the life of the console. One that cannot be had is asked for once a page, not once a record, and
a registry that does not answer is not asked again for that page.
"""

import io
import json
from typing import TYPE_CHECKING

from pybroker.avro.framing import FRAME_BYTES, framed_id
from pybroker.avro.registry_client import NoSchema
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    from pybroker.avro.values import Avro
    from pybroker.avro.writer_schemas import WriterSchemas


class AvroView:
    """The schemas of one page."""

    def __init__(self, schemas: "WriterSchemas") -> None:
        self._schemas = schemas
        self._known: dict[int, Avro | str] = {}
        self._down = ""

    def json(self, data: bytes) -> str:
        """Return framed bytes as JSON with indents. ValueError, with the reason, if they cannot be read."""
        import fastavro

        number = framed_id(data)
        if number is None:
            raise ValueError("no frame of a schema registry")
        if number not in self._known:
            self._known[number] = self._read(number)
        schema = self._known[number]
        if isinstance(schema, str):
            raise ValueError(f"schema {number} {schema}")
        source = io.BytesIO(data[FRAME_BYTES:])
        try:
            row = fastavro.schemaless_reader(source, schema, None)
        except Exception:  # malformed bytes fail in as many ways as there are types
            row = None
        if row is None or source.tell() != len(data) - FRAME_BYTES:
            raise ValueError(f"not an Avro record of its schema {number}")
        return json.dumps(row, indent=2, ensure_ascii=False, default=_text)

    def _read(self, number: int) -> "Avro | str":
        """Return the schema of an id, or why there is none."""
        import fastavro

        from pybroker.avro.resolution import whole_schema

        if self._down:
            return self._down
        try:
            return fastavro.parse_schema(whole_schema(self._schemas.schema(number)))
        except NoSchema as error:
            return str(error)
        except KafkaError as error:
            self._down = f"is not known: {error.message}"
            return self._down
        except Exception:  # fastavro raises several types, and KeyError, for a malformed schema
            return "is not an Avro schema"


def _text(value: object) -> str:
    """Return bytes, decimals, times and the like as JSON's strings."""
    return value.hex() if isinstance(value, bytes) else str(value)
