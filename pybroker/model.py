"""Small value types that several packages share."""

import contextlib
import re
from socket import AF_INET6, inet_aton, inet_ntoa, inet_ntop, inet_pton
from typing import Any, Final, NamedTuple, SupportsIndex

_ENDPOINT = re.compile(
    r"(?P<listener>[A-Za-z][A-Za-z0-9_.-]*)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})"
)
PORT_MAX = 65535
TEXT_BYTES_MAX = 255
"""The longest host name or rack in UTF-8 bytes, as the plane's buffers have this size."""
PLAINTEXT = "PLAINTEXT"
"""The security protocol without TLS and SASL, and the name of the default listener."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names of codecs in settings; their indexes are the codec numbers in attribute bits 0 to 2 of a batch."""

CONSUMER, DEBUGGING = -1, -2
"""Replica ids of requests that are not from a broker: a consumer, and a tool that compares replicas. The tool reads any
replica, to the end of its log, with the rights of a consumer."""

Document = dict[str, Any]
"""A JSON object, as a command prints it, a broker answers over HTTP or a file has it."""
SIZE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")


def bytes_text(number: int) -> str:
    """Return a number of bytes in the unit with one to three digits before the point: 999 B, 1.5 kB, 12.3 MB."""
    if number < 1000:
        return f"{number} B"
    power = next((p for p in range(1, len(SIZE_UNITS)) if number < 999.95 * 1000**p), len(SIZE_UNITS))
    return f"{number / 1000**power:,.1f} {SIZE_UNITS[power - 1]}"


def percent_text(share: float) -> str:
    """Return a share as a whole percentage: 12 %."""
    return f"{share * 100:.0f} %"


def check_told(text: str) -> None:
    """Raise ValueError if the name of a host or rack is longer than TEXT_BYTES_MAX."""
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"{text[:50]!r}... is longer than {TEXT_BYTES_MAX} bytes")


def check_port(port: int) -> None:
    """Raise ValueError for an invalid port: the C library would use its lower 16 bits and connect to another port."""
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"port {port} is not from 1 to {PORT_MAX}")


def usual(host: str) -> str:
    """Normalize an address: 0.0.0.0 for 0, 127.0.0.1 for 127.1, :: for 0::0. Return a name unchanged."""
    with contextlib.suppress(OSError):  # not an address
        return inet_ntop(AF_INET6, inet_pton(AF_INET6, host)) if ":" in host else inet_ntoa(inet_aton(host))
    return host


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    @classmethod
    def of(cls, pair: object) -> "TopicPartition":
        """Convert a pair of a topic's name and a number. Raises TypeError for anything else."""
        match pair:
            case (str(topic), SupportsIndex() as partition) if not isinstance(partition, bool):
                return cls(topic, partition.__index__())
        raise TypeError(f"a partition is a topic and a number, like ('orders', 0), not {pair!r}")

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class HostPort(NamedTuple):
    """An address without a listener name; an empty host means every interface."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """Parse a text like 127.0.0.1:9404 or [::1]:9404. Raises ValueError."""
        return cls(*Endpoint.parse(f"X://{text}")[1:])

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Endpoint(NamedTuple):
    """The address of a listener: its name in capitals, host (IPv6 without brackets, normalized, empty for every
    interface) and port."""

    listener: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Parse a text like PLAINTEXT://host:9092. Raises ValueError."""
        found = _ENDPOINT.fullmatch(text)
        if not found or int(found["port"]) > PORT_MAX:
            raise ValueError(f"{text!r} is not NAME://HOST:PORT with a port of at most {PORT_MAX}")
        host = found["host"].strip("[]")
        check_told(host)
        try:
            host.encode("idna")
        except UnicodeError:
            raise ValueError(f"{text!r} has an invalid host name: a label is empty or too long") from None
        return cls(found["listener"].upper(), usual(host), int(found["port"]))

    def __str__(self) -> str:
        return f"{self.listener}://{HostPort(self.host, self.port)}"
