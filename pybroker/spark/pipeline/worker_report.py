"""What a Python worker of Spark says of itself. It is sent there by value, and needs only the standard library."""

from collections.abc import Iterable, Iterator


def report(_: Iterable[int], addresses: list[tuple[str, int]], timeout_s: float) -> Iterator[dict[str, object]]:
    """One document: the worker's host and Python, the versions of what the source needs (None: it is not there), and
    which of the addresses cannot be reached, with the reason."""
    import importlib.metadata
    import os
    import socket
    import sys

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    unreachable = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout_s).close()
        except OSError as error:
            unreachable.append((f"{host}:{port}", error.strerror or str(error) or type(error).__name__))
    yield {
        "host": os.environ.get("SPARK_LOCAL_IP") or socket.gethostname(),
        "python": sys.executable,
        "packages": {package: version(package) for package in ("pybroker", "pyarrow", "numpy")},
        "unreachable": unreachable,
    }
