"""The check whether the servers of a store are on this machine."""

import ipaddress
from collections.abc import Iterable


def are_here(names: Iterable[str]) -> bool:
    """True if all hosts are localhost or loopback addresses."""
    return all(name == "localhost" or _is_loopback(name) for name in names)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
