"""`python -m pybroker` is `pybroker`."""

from pybroker.cli.main import main

main()
