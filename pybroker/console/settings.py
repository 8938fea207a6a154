"""The settings of a console, as the command makes them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.model import HostPort

if TYPE_CHECKING:
    from pybroker.avro.writer_schemas import WriterSchemas

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class ConsoleSettings(NamedTuple):
    """The cluster and its clients' login, where the console listens, the login of its viewers, and whether they may
    change anything."""

    bootstrap: str
    login: Mapping[str, str]
    """The security settings of clients, such as sasl_username, by the names of `Admin`."""
    timeout_s: float
    host: str
    port: int
    user: str | None = None
    """The name that a viewer gives; None asks for no name, or for one of the cluster."""
    password: str = ""
    cluster_login: bool = False
    """True if viewers log in with their own user and password of the cluster, and have its rights."""
    allow_changes: bool = False
    host_names: Sequence[str] = ()
    """Names, beside addresses and localhost, by which browsers may reach the console."""
    certificate: str | None = None
    """The file (PEM) of the console's own TLS certificate and those that issued it; None for HTTP."""
    key: str | None = None
    schemas: "WriterSchemas | None" = None
    """The schemas of a registry, for keys and values in Avro."""

    @property
    def needs_login(self) -> bool:
        return self.user is not None or self.cluster_login

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    def url(self, port: int) -> str:
        """The address for a browser on this machine; `port` is the one that was taken."""
        return f"{'http' if self.certificate is None else 'https'}://{HostPort(self.host, port)}/"
