"""Topics as tables: read from brokers or log directories into Arrow, for pandas, polars and DuckDB, and written back.

    schemas        what a caller calls a schema -> pyarrow.Schema
    ranges         start and end -> offsets of each partition
    sources        records as Arrow batches: of brokers, of a log directory
    json_values    values that are JSON -> typed columns;  inference: their types, where no schema is given
    avro_values    values that are Avro -> typed columns
    scanning       batch after batch: columns, records that do not decode
    reading        the functions read_topic, scan_topic;  polars_scan: scan_polars
    writing        write_topic;  json_text: rows as JSON
"""

from pybroker.client.columns import arrow as arrow  # says in a sentence how to install pyarrow where it is missing
