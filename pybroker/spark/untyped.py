"""Names for untyped values of other libraries, and the library that defines each."""

from typing import Any

from pybroker.avro.values import Avro as Avro
from pybroker.avro.values import Document as Document
from pybroker.avro.values import Told as Told

JavaObject = Any
"""An object of the JVM, reached through py4j, or of PySpark where it has no types; its methods are Java's."""
