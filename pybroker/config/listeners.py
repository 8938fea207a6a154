"""The four settings that define a broker's listeners and their advertised addresses, with Kafka's rules for them.

    listeners                       a name and an address each
    listener.security.protocol.map  the security protocol of each name
    advertised.listeners            the address sent to clients of each listener; by default the one in `listeners`
    inter.broker.listener.name      the listener that other brokers use

Names are compared in capitals, as in Kafka. The error texts are Kafka's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker.model import PLAINTEXT, Endpoint

from .settings import INT_MAX

LISTENERS = "listeners"
ADVERTISED = "advertised.listeners"
PROTOCOLS = "listener.security.protocol.map"
INTER_BROKER = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"

SECURITY_PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
EVERY_INTERFACE = ("", "0.0.0.0", "::")


class Refused(ValueError):
    """A setting contradicts others. `why` completes "is not allowed: "; None to name what the setting takes."""

    def __init__(self, setting: str, why: str | None = None) -> None:
        super().__init__(setting, why)
        self.setting = setting
        self.why = why


class Listeners(NamedTuple):
    """The result of the four settings. `advertised` is None if it is not set; `protocols` has every listener in
    `endpoints`, also those that are not advertised."""

    endpoints: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...] | None
    protocols: Mapping[str, str]
    inter_broker: str


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of a comma-separated list. Raises ValueError."""
    return tuple(Endpoint.parse(part.strip()) for part in text.split(","))


def parse_advertised(text: str) -> tuple[Endpoint, ...]:
    """The endpoints of a comma-separated list, each with a host that others can reach. Raises ValueError."""
    endpoints = parse_endpoints(text)
    if any(endpoint.host in EVERY_INTERFACE for endpoint in endpoints):
        raise ValueError(text)
    return endpoints


def parse_protocols(text: str) -> dict[str, str]:
    """{name: security protocol} from NAME:PROTOCOL,... Raises ValueError."""
    found = {}
    for part in text.split(","):
        name, colon, protocol = part.strip().rpartition(":")
        if not colon or not name or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ValueError(text)
        found[name.strip().upper()] = protocol.upper()
    return found


def parse_per_ip(text: str) -> dict[str, int]:
    """{address: connections} from ADDRESS:COUNT,... Raises ValueError. Unlike Kafka's it allows no host names, which
    would be resolved only once."""
    import ipaddress  # the setting is rarely used

    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = part.rpartition(":")
        if not count.isdecimal() or int(count) > INT_MAX:
            raise ValueError(text)
        address = ipaddress.ip_address(host.strip().removeprefix("[").removesuffix("]"))
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        found[str(mapped or address)] = int(count)
    return found


def settle(
    listeners: str, advertised: str | None, protocols: str, inter_broker: str | None, protocol: str = PLAINTEXT
) -> Listeners:
    """Combine the four settings, each valid on its own. Raises Refused."""
    endpoints, mapped = parse_endpoints(listeners), parse_protocols(protocols)
    shown = None if advertised is None else parse_advertised(advertised)
    _check_protocols(endpoints, mapped)
    _check_names(LISTENERS, endpoints)
    _check_ports(endpoints)
    names = [endpoint.listener for endpoint in endpoints]
    if shown is not None:
        _check_names(ADVERTISED, shown)
        found = [endpoint.listener for endpoint in shown]
        if not set(found) <= set(names):
            words = "listener names must be equal to or a subset of the ones defined in listeners"
            options = f"The valid options based on the current configuration are {','.join(names)}"
            raise Refused(ADVERTISED, f"{words}. Found {','.join(found)}. {options}")
        names = found
    name = protocol if inter_broker is None else inter_broker.strip().upper()
    if name not in names:
        options = f"The valid options based on currently configured listeners are {','.join(names)}"
        raise Refused(INTER_BROKER, f"it must be a listener name defined in advertised.listeners. {options}")
    return Listeners(endpoints, shown, {each.listener: mapped[each.listener] for each in endpoints}, name)


def _check_protocols(endpoints: Iterable[Endpoint], mapped: Mapping[str, str]) -> None:
    for endpoint in endpoints:
        name = endpoint.listener
        protocol = mapped.get(name)
        if protocol is None:
            raise Refused(LISTENERS, f"No security protocol defined for listener {name}: name it in {PROTOCOLS}")


def _check_names(setting: str, endpoints: Sequence[Endpoint]) -> None:
    if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
        raise Refused(setting, "Each listener must have a different name")


def _check_ports(endpoints: Iterable[Endpoint]) -> None:
    """Check that two listeners share a port only if one has an IPv4 and the other an IPv6 address; 0 is any free port.
    """
    by_port: dict[int, list[str]] = {}
    for endpoint in endpoints:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint.host)
    for port, hosts in by_port.items():
        versions = [_ip_version(host) for host in hosts] if len(hosts) > 1 else []
        if versions.count(None) > 1:
            raise Refused(LISTENERS, f"Each listener must have a different port, but {len(hosts)} have {port}")
        if len(hosts) > 1 and sorted(version or 0 for version in versions) != [4, 6]:
            words = "If you have two listeners on the same port then one needs to be IPv4 and the other IPv6"
            raise Refused(LISTENERS, f"{words}, port: {port}")


def _ip_version(host: str) -> int | None:
    """4 or 6; None for a name or an empty host."""
    import ipaddress  # takes as long to import as the settings, and few brokers have two listeners on one port

    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None
