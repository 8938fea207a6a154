"""Small values that several rooms share."""

import contextlib
import re
from socket import AF_INET6, inet_aton, inet_ntoa, inet_ntop, inet_pton
from typing import NamedTuple, SupportsIndex

_ENDPOINT = re.compile(
    r"(?P<listener>[A-Za-z][A-Za-z0-9_.-]*)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})"
)
PORT_MAX = 65535
TEXT_BYTES_MAX = 255
"""Of a host's name, and of a rack's, in UTF-8: the plane has so much room for them."""
PLAINTEXT = "PLAINTEXT"
"""The security protocol of a listener without any, and the name of the listener that there is by default."""

CONSUMER, DEBUGGING = -1, -2
"""Replica ids of requests from no broker: a consumer, and a tool that compares replicas. That one reads any replica, to
the end of its log, with the rights of a consumer."""


def check_told(text: str) -> None:
    """ValueError for the name of a host or of a rack that is too long to be told to clients."""
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"{text[:50]!r}... is longer than {TEXT_BYTES_MAX} bytes")


def check_port(port: int) -> None:
    """ValueError for what is no port to connect to: the C library takes its lower 16 bits, and another's is reached."""
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"port {port} is not from 1 to {PORT_MAX}")


def usual(host: str) -> str:
    """An address as the system writes it: 0.0.0.0 for 0, 127.0.0.1 for 127.1, :: for 0::0. A name as it is."""
    with contextlib.suppress(OSError):  # it is no such address
        return inet_ntop(AF_INET6, inet_pton(AF_INET6, host)) if ":" in host else inet_ntoa(inet_aton(host))
    return host


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    @classmethod
    def of(cls, pair: object) -> "TopicPartition":
        """A topic's name and a number as the one of them; TypeError if they are none."""
        match pair:
            case (str(topic), SupportsIndex() as partition) if not isinstance(partition, bool):
                return cls(topic, partition.__index__())
        raise TypeError(f"a partition is a topic and a number, like ('orders', 0), not {pair!r}")

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class HostPort(NamedTuple):
    """An address without a listener's name; an empty host is every interface."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """The address of a text like 127.0.0.1:9404 or [::1]:9404; ValueError if it is none."""
        return cls(*Endpoint.parse(f"X://{text}")[1:])

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Endpoint(NamedTuple):
    """Where a listener is: its name in capitals, host (IPv6 without brackets, empty for every interface; an address as
    the system writes it), port."""

    listener: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """The endpoint of a text like PLAINTEXT://host:9092; ValueError if it is none."""
        found = _ENDPOINT.fullmatch(text)
        if not found or int(found["port"]) > PORT_MAX:
            raise ValueError(f"{text!r} is not NAME://HOST:PORT with a port of at most {PORT_MAX}")
        host = found["host"].strip("[]")
        check_told(host)
        try:
            host.encode("idna")
        except UnicodeError:
            raise ValueError(f"{text!r} has no name of a host: a label of it is empty, or too long") from None
        return cls(found["listener"].upper(), usual(host), int(found["port"]))

    def __str__(self) -> str:
        return f"{self.listener}://{HostPort(self.host, self.port)}"
