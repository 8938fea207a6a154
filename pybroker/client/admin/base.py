"""The base of all admin operations: the cluster, a deadline, and the error for a refusal."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.foreign import no_settings_first
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import RETRY_BACKOFF_S, ClusterConnections
from pybroker.client.security.settings import security_from
from pybroker.errors import KafkaError
from pybroker.patience import waiting
from pybroker.protocol.message import Message, Request

SETTLE_S_MAX: Final = 5.0
"""Seconds after a broker's answer for which a call waits until metadata shows the change."""

_BROKER_SHARE: Final = 0.9
"""The broker's timeout as a share of ours: it gives up first, so its answer says what was not done."""

T = TypeVar("T")


class AdminBase:
    """A cluster and how long to wait for it."""

    def __init__(
        self, bootstrap_servers: str | Sequence[str], *, timeout_s: float = 30.0, **security: Any
    ) -> None:
        """`security`: security_protocol, sasl_mechanism, sasl_username and the like, as a producer takes them."""
        no_settings_first(type(self).__name__, (bootstrap_servers,), addresses=True)
        arguments.seconds(timeout_s)
        account, tls = security_from(security)
        self.cluster = ClusterConnections(
            arguments.bootstrap(bootstrap_servers), timeout_s=timeout_s, account=account, tls=tls
        )
        self.timeout_s = timeout_s
        self._bootstrap = arguments.bootstrap(bootstrap_servers)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._bootstrap}: timeout_s={self.timeout_s:g}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self.cluster.close()

    @property
    def _timeout_ms(self) -> int:
        return max(1, int(self.timeout_s * _BROKER_SHARE * 1000))

    def _until_shown(self, shown: Callable[[], bool]) -> None:
        """Wait until the brokers' metadata shows a change, at most SETTLE_S_MAX; a longer delay is no failure."""
        deadline = time.monotonic() + min(SETTLE_S_MAX, self.timeout_s)
        with waiting.get()("until the brokers show the change"):
            while not shown() and time.monotonic() < deadline:
                time.sleep(RETRY_BACKOFF_S / 4)

    def _change(self, request: Request[Message], field: str) -> list[Any]:
        """Send a request about topics to the controller; return the results in `field`. KafkaError if one failed."""

        def ask(controller: BrokerConnection) -> list[Any]:
            results: list[Any] = getattr(controller.request(request), field)
            for result in results:
                raise_for(result.error_code, f"topic {result.name}", getattr(result, "error_message", None))
            return results

        return self.cluster.ask_controller(ask)


def only(results: Sequence[T], what: str) -> T:
    """The only result of a request for one thing. KafkaError if the answer has none, or several."""
    if len(results) != 1:
        raise KafkaError(
            errors.UNKNOWN_SERVER_ERROR, f"the broker was asked about {what}, and answered with {len(results)} results"
        )
    return results[0]


_DENIALS: Final = {
    errors.TOPIC_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED, errors.CLUSTER_AUTHORIZATION_FAILED,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}  # fmt: skip


def raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raise KafkaError for a code other than NONE, with the broker's message if there is one, else the code's meaning.

    A denial names no ACL: the broker does not send which one is missing."""
    if code in _DENIALS:
        raise KafkaError(code, f"{what}: {errors.lookup(code).meaning}: it takes an ACL, which the broker's log names")
    if code != errors.NONE:
        raise KafkaError(code, message or f"{what}: {errors.lookup(code).meaning}")
