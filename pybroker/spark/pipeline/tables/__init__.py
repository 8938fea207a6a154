"""The tables of a pipeline: directories of Parquet files, Delta Lake and Iceberg."""
