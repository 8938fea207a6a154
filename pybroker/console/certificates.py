"""The certificates that brokers show to the console, and when they end."""

import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509

from pybroker.client.net.metadata import Node
from pybroker.clock import wall_ms
from pybroker.console.clients import ViewerClients
from pybroker.operations.each_broker import ANSWER_S_MAX, Silent, ask_each

SOON_MS: Final = 30 * 86_400_000
"""Time before its end from which on a certificate is shown in red."""


class ShownCertificate(NamedTuple):
    """The certificate of a broker: its subject, and its end in ms since the epoch; or why there is none."""

    broker: int
    subject: str
    end_ms: int
    reason: str


def certificates(clients: ViewerClients, nodes: Sequence[Node]) -> list[ShownCertificate]:
    """Return the certificate of each broker at the listener that the console uses; none if that has no TLS."""
    if "SSL" not in str(clients.login.get("security_protocol", "")):
        return []

    def ask(node: Node) -> ShownCertificate:
        try:
            text = ssl.get_server_certificate((node.host, node.port), timeout=ANSWER_S_MAX)
            found = x509.load_pem_x509_certificate(text.encode())
        except (OSError, ValueError) as problem:
            raise Silent(str(problem)) from None
        end_ms = round(found.not_valid_after_utc.timestamp() * 1000)
        return ShownCertificate(node.id, found.subject.rfc4514_string(), end_ms, "")

    return [
        ShownCertificate(node.id, "-", 0, str(answer)) if isinstance(answer, Silent) else answer
        for node, answer in ask_each(nodes, ask)
    ]


def ends_soon(end_ms: int) -> bool:
    """True if a certificate has ended, or ends within SOON_MS."""
    return end_ms < wall_ms() + SOON_MS
