"""The report of a Spark Python worker about itself. It is sent by value, and needs only the standard library."""

from collections.abc import Iterable, Iterator, Sequence


def report(
    _: Iterable[int], addresses: list[tuple[str, int]], timeout_s: float, directory: str | None
) -> Iterator[dict[str, object]]:
    """Yield one document: the worker's host and Python, the versions of the source's dependencies (None: missing), the
    unreachable addresses with the reason, and the file written into the directory, or why it could not be."""
    import importlib.metadata
    import os
    import socket
    import sys

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    yield {
        "host": os.environ.get("SPARK_LOCAL_IP") or socket.gethostname(),
        "python": sys.executable,
        "packages": {package: version(package) for package in ("pybroker", "pyarrow", "numpy")},
        "unreachable": unreachable(addresses, timeout_s),
        "written": written(directory),
    }


def written(directory: str | None) -> tuple[str | None, str | None]:
    """Return (name of a new file in the directory, None), or (None, reason). A missing directory is not created."""
    import os
    import uuid

    if directory is None:
        return None, None
    name = uuid.uuid4().hex
    try:
        with open(os.path.join(directory, name), "x"):
            return name, None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, error.strerror or str(error)


def unreachable(addresses: Sequence[tuple[str, int]], timeout_s: float) -> list[tuple[str, str]]:
    """Return (address, reason) for those that refuse a connection or do not answer. All are tried in parallel."""
    import socket
    from concurrent.futures import ThreadPoolExecutor

    def reason(address: tuple[str, int]) -> str | None:
        if not 0 < address[1] < 65536:  # the C library would use the lower 16 bits, and so another port
            return "the port is invalid"
        try:
            socket.create_connection(address, timeout_s).close()
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        return None

    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        reasons = pool.map(reason, addresses)
        pairs = zip(addresses, reasons, strict=True)
        return [(f"{host}:{port}", why) for (host, port), why in pairs if why is not None]
