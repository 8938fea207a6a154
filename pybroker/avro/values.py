"""Names for untyped values of JSON and Avro."""

from collections.abc import Mapping
from typing import Any

Avro = Any
"""An Avro schema as fastavro parses it, or a value of one; the schema defines its type."""
Document = dict[str, Any]
"""A JSON object to write, or as read."""
Told = Mapping[str, Any]
"""A JSON object as read, which is not changed."""
