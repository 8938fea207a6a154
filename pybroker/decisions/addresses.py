"""Checks that no two brokers advertise the same address: clients and the controller would reach only one of them."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pybroker.decisions.image import LiveBroker
from pybroker.model import HostPort


class Clash(NamedTuple):
    """A broker that already advertises an address, and the address."""

    broker: int
    at: HostPort

    def __str__(self) -> str:
        return f"{self.at.host}:{self.at.port} is the address of broker {self.broker}, which is registered"


def clash(broker_id: int, wanted: Collection[HostPort], others: Iterable[LiveBroker]) -> Clash | None:
    """The first other broker that advertises one of the wanted addresses, on any listener; None if there is none."""
    for other in others:
        if other.id == broker_id:
            continue
        for at in other.endpoints.values():
            if HostPort(at.host, at.port) in wanted:
                return Clash(other.id, at)
    return None
