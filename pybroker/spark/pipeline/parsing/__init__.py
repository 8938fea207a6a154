"""Turn records into rows: formats, the schemas of Avro's writers, and the partition of a row in its table."""
