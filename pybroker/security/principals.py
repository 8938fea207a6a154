"""Who calls, and from where, in the texts that ACLs have: User:ann, 127.0.0.1."""

from socket import AF_INET6, inet_pton
from struct import unpack

from pybroker.config.settings import shown

SUPER_USERS = "super.users"


def super_users(text: str) -> frozenset[str]:
    """The principals of super.users, like User:ann;User:CN=bob,OU=ops. ValueError if one is none.

    An empty one is none, but at the end."""
    given = text.rstrip(";")
    parts = [part.strip() for part in given.split(";")] if given else []
    for part in parts:
        if ":" not in part:
            raise ValueError(
                f"{SUPER_USERS}={shown(text)} is not allowed: {shown(part)} is no principal; "
                f"write a type and a name each, with semicolons between them, like User:ann;User:bob"
            )
    return frozenset(parts)


def host_text(address: str) -> str:
    """The text of a peer's address as Java prints it, and as ACLs have it: IPv6 in full, IPv4 in IPv6 as IPv4.

    The address is numeric, with or without a zone (`%eth0`), which stays. ValueError for what is none."""
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
