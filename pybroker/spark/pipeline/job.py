"""The options of a pipeline, checked before Spark is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.options import SECURITY_CLIENT

Format = Literal["json", "avro", "raw"]
TableFormat = Literal["parquet", "delta", "iceberg"]
TABLE_FORMATS: Final = cast(tuple[str, ...], get_args(TableFormat))
FORMATS: Final = cast(tuple[str, ...], get_args(Format))
STATE: Final = "_pybroker"
"""The pipeline's own directory in a table; readers of Parquet skip names that begin with an underscore."""


@dataclass(frozen=True)
class Job:
    """One pipeline. Raises KafkaError(INVALID_CONFIG) with one sentence if the options do not fit together.

    topics: names, separated by commas; pattern: a regular expression instead. table: a directory, as a path or a URI of
    Spark's Hadoop; for a Delta table, of delta-rs; for an Iceberg table CATALOG.NAMESPACE.NAME. table_options: of the
    table's store or catalog, by the names of the format's library. schema: for JSON as Spark's DDL ("id bigint, kind
    string"), for Avro as its JSON.
    registry: URLs, separated by commas, of the schema registry for the ids in Avro's frames. registry_options: the
    registry's login and CA, see writer_schemas.OPTIONS. schemas: a directory of files `5.avsc`, or a file
    `{"5": SCHEMA, ...}`, instead. Without either, Avro records are read as they are, without a frame.
    partition_by: columns of the table, `date` and `hour` of the record's time among them. trigger_s: seconds between
    batches; None reads the records that are there and ends. dead_letters: the topic for records that do not parse; None
    only counts them. master: a Spark cluster; None uses spark-submit or spark-defaults.conf, else local[*].
    compact_files: this many small files in a directory are merged into one; 0 disables it.
    """

    bootstrap: str
    table: str
    topics: str | None = None
    pattern: str | None = None
    format: Format = "json"
    schema: str | None = None
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may include a password
    schemas: str | None = None
    partition_by: tuple[str, ...] = ("date",)
    dead_letters: str | None = None
    checkpoint: str | None = None
    starting_offsets: str = "earliest"
    max_offsets: int | None = 5_000_000
    trigger_s: float | None = 10.0
    compact_files: int = 16
    file_bytes: int = 128 << 20
    name: str = "pybroker-pipeline"
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    table_format: TableFormat = "parquet"
    table_options: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the source, such as kafka.isolation.level."""

    def __post_init__(self) -> None:
        if (self.topics is None) == (self.pattern is None):
            raise _wrong("give either topics or a pattern of topics")
        if self.format not in FORMATS:
            raise _wrong(f"format is {self.format!r}; it can be {', '.join(FORMATS)}")
        if self.format == "raw" and self.schema is not None:
            raise _wrong("format raw takes no schema: keys and values are stored as they are")
        if self.format != "raw" and not self.schema:
            raise _wrong(f"format {self.format} needs a schema")
        self._check_registry()
        if self.table_format not in TABLE_FORMATS:
            raise _wrong(f"table format is {self.table_format!r}; it can be {', '.join(TABLE_FORMATS)}")
        if self.table_format == "parquet" and self.table_options:
            raise _wrong("a table of Parquet files takes no options: its store is set up by --conf spark.hadoop...")
        if self.checkpoint is None and not self._has_directory():
            raise _wrong(f"the checkpoint of {self.table} needs a place that Spark can write to: give --checkpoint")
        if self.trigger_s is not None and self.trigger_s < 0:
            raise _wrong(f"the trigger is {self.trigger_s:g} s; it can be 0 or more")
        if self.compact_files < 0 or self.file_bytes <= 0:
            raise _wrong("compaction needs numbers above 0; 0 files disables it")

    def _check_registry(self) -> None:
        if self.registry is not None and self.schemas is not None:
            raise _wrong("a schema registry and schemas by id are given: remove one of them")
        if self.registry_options and self.registry is None:
            raise _wrong("options of a schema registry are given without a registry")
        if self.format != "avro" and (self.registry is not None or self.schemas is not None):
            why = "a frame before JSON is skipped" if self.format == "json" else "values are stored as they are"
            raise _wrong(f"format {self.format} needs neither a schema registry nor schemas by id: {why}")

    @property
    def checkpoint_dir(self) -> str:
        return self.checkpoint or f"{self.table.rstrip('/')}/{STATE}/checkpoint"

    def _has_directory(self) -> bool:
        """True if the table is a directory in which Spark can keep files, too."""
        scheme, colon, _ = self.table.partition("://")
        delta = self.table_format == "delta"
        return self.table_format == "parquet" or (delta and (not colon or scheme in ("file", "hdfs")))

    def source_options(self) -> dict[str, str]:
        """The options of the stream to read."""
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "startingOffsets": self.starting_offsets,
            "queryName": self.name,
        }
        given |= {"subscribe": self.topics} if self.topics is not None else {"subscribePattern": self.pattern or ""}
        if self.max_offsets is not None:
            given["maxOffsetsPerTrigger"] = str(self.max_offsets)
        return given | dict(self.options)

    def security_options(self) -> dict[str, str]:
        """The source's connection and login options, for a sink."""
        return {name: text for name, text in self.options.items() if name.removeprefix("kafka.") in SECURITY_CLIENT}


def _wrong(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, why)
