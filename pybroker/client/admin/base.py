"""What every family of admin operations stands on: the cluster, a deadline, and a sentence for what was refused."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.connection import Connection
from pybroker.client.metadata import RETRY_BACKOFF_S, Cluster
from pybroker.client.security import security_from
from pybroker.errors import KafkaError

SETTLE_S_MAX: Final = 5.0
"""How long after a broker's answer a change may take to show, before nobody waits for it any longer."""

_BROKER_SHARE: Final = 0.9
"""The broker is told to give up a little earlier than we do, so that its answer says what did not get done."""


class AdminBase:
    """A cluster and how long to wait for it."""

    def __init__(self, bootstrap_servers: str | Sequence[str], *, timeout_s: float = 30.0, **security: Any) -> None:
        """`security`: security_protocol, sasl_mechanism, sasl_username and the like, as a producer takes them."""
        arguments.seconds(timeout_s)
        account, tls = security_from(security)
        self.cluster = Cluster(arguments.bootstrap(bootstrap_servers), timeout_s=timeout_s, account=account, tls=tls)
        self.timeout_s = timeout_s

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
        """Wait until the brokers show what they have answered to be done; not for long, and never as a failure."""
        deadline = time.monotonic() + min(SETTLE_S_MAX, self.timeout_s)
        while not shown() and time.monotonic() < deadline:
            time.sleep(RETRY_BACKOFF_S / 4)

    def _change(self, request: Any, field: str) -> list[Any]:
        """Send a request about topics to the controller; the results in `field`, none of which failed."""

        def ask(controller: Connection) -> list[Any]:
            results: list[Any] = getattr(controller.request(request), field)
            for result in results:
                raise_for(result.error_code, f"topic {result.name}", getattr(result, "error_message", None))
            return results

        return self.cluster.ask_controller(ask)


def only(results: Sequence[Any], what: str) -> Any:
    """The result of a request that named one thing. KafkaError if the broker told of none, or of more."""
    if len(results) != 1:
        raise KafkaError(
            errors.UNKNOWN_SERVER_ERROR, f"the broker was asked about {what}, and told of {len(results)} things"
        )
    return results[0]


_DENIALS: Final = {
    errors.TOPIC_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED, errors.CLUSTER_AUTHORIZATION_FAILED,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}  # fmt: skip


def raise_for(code: int, what: str, message: str | None = None) -> None:
    """KafkaError of a code that is not 0: the broker's own sentence if it gave one, else what the code means.

    Of a denial a broker only says that it is one."""
    if code in _DENIALS:
        raise KafkaError(code, f"{what}: {errors.lookup(code).meaning}: it takes an ACL, which the broker's log names")
    if code != errors.NONE:
        raise KafkaError(code, message or f"{what}: {errors.lookup(code).meaning}")
