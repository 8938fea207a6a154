"""The commands that write and read records, one by one or into a table, and the text formats of a record."""
