"""The `pybroker` command line: serve, topics, dump and so on; each command imports what it needs when it runs."""
