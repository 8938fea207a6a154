"""One address, one broker: if two advertise the same one, clients and the controller reach one of them for both."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pybroker.cluster.image import LiveBroker
from pybroker.model import HostPort


class Clash(NamedTuple):
    """A broker that advertises an address already, and the address."""

    broker: int
    at: HostPort

    def __str__(self) -> str:
        return f"{self.at.host}:{self.at.port} is the address of broker {self.broker}, which is registered"


def clash(broker_id: int, wanted: Collection[HostPort], others: Iterable[LiveBroker]) -> Clash | None:
    """The first of the other brokers that advertises one of the wanted addresses, on any listener."""
    for other in others:
        if other.id == broker_id:
            continue
        for at in other.endpoints.values():
            if HostPort(at.host, at.port) in wanted:
                return Clash(other.id, at)
    return None
