"""What a person types: `pybroker serve`, `pybroker topics`, `pybroker dump`; each loads what it needs when it runs."""
