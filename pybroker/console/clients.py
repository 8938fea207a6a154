"""The clients of a viewer: admin clients that are kept between requests, and consumers that are not."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from pybroker.client.admin import Admin
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.net.metadata import Node
from pybroker.console.lags import LagHistory
from pybroker.model import HostPort
from pybroker.operations.each_broker import ANSWER_S_MAX

if TYPE_CHECKING:
    from pybroker.client.settings import ConsumerSettings

IDLE_MAX: Final = 4
CLIENT_ID: Final = "pybroker-console"
FETCH_BYTES_MAX: Final = 4 << 20
PARTITION_BYTES_MAX: Final = 1 << 20


class ViewerClients:
    """ViewerClients of one login. Threads may call this at the same time: each has an admin client to itself."""

    def __init__(
        self, bootstrap: str, login: Mapping[str, str], timeout_s: float, lags: LagHistory | None = None
    ) -> None:
        """`lags` is the history of another with the same login; None: one of its own."""
        self.bootstrap = bootstrap
        self.login = dict(login)
        self._timeout_s = timeout_s
        self._idle: list[Admin] = []
        self._closed = False
        self.lags = LagHistory() if lags is None else lags

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """Lend an admin client. One that failed is not used again."""
        try:
            admin = self._idle.pop()
        except IndexError:
            admin = Admin(self.bootstrap, timeout_s=self._timeout_s, **self.login)
        try:
            yield admin
        except BaseException:
            admin.close()
            raise
        if self._closed or len(self._idle) >= IDLE_MAX:
            admin.close()
        else:
            self._idle.append(admin)

    def admin_at(self, node: Node) -> Admin:
        """Return an admin client for this broker alone, with a short timeout."""
        return Admin(str(HostPort(node.host, node.port)), timeout_s=ANSWER_S_MAX, **self.login)

    def consumer(self, fetch_bytes_max: int = FETCH_BYTES_MAX) -> Consumer:
        """Return a consumer without a group, which creates no topic and reads ahead little."""
        settings = {
            "bootstrap_servers": self.bootstrap,
            "client_id": CLIENT_ID,
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "auto_offset_reset": "earliest",
            "fetch_max_bytes": fetch_bytes_max,
            "max_partition_fetch_bytes": min(PARTITION_BYTES_MAX, fetch_bytes_max),
            "default_api_timeout_ms": round(self._timeout_s * 1000),
            **self.login,
        }
        return Consumer(**cast("ConsumerSettings", settings))

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the idle clients; those that are lent are closed when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
