"""Names of users and hosts in the form that ACLs use, like 127.0.0.1."""

from socket import AF_INET, AF_INET6, inet_pton
from struct import unpack

from pybroker.config.settings import shown

_NOT_USERS = frozenset({"", "*", "ANONYMOUS"})


def can_log_in(user: str) -> bool:
    """False for ANONYMOUS and `*`, the names in ACLs for clients without a login and for all clients: no login,
    certificate or token makes such a principal."""
    return user not in _NOT_USERS


def host_text(address: str) -> str:
    """A peer's address as Java prints it, and as ACLs have it: IPv6 in full, IPv4 mapped into IPv6 as IPv4.

    The address is numeric; a zone (`%eth0`) is kept. ValueError for anything else."""
    if ":" not in address:
        return address
    number, percent, zone = address.partition("%")
    try:
        packed = inet_pton(AF_INET6, number)
    except OSError:
        raise ValueError(f"{shown(address)} is no address") from None
    if packed[:12] == bytes(10) + b"\xff\xff":
        return ".".join(map(str, packed[12:]))
    return ":".join(f"{part:x}" for part in unpack(">8H", packed)) + percent + zone


def acl_host(text: str) -> str:
    """The host of an ACL for this address, in any notation, or `*` for every host. ValueError for anything else: ACLs
    do not support host names or networks."""
    if text == "*":
        return text
    host = host_text(text)
    if ":" not in host:
        try:
            inet_pton(AF_INET, host)
        except OSError:
            raise ValueError(f"{shown(text)} is no address") from None
    return host
