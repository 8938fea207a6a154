"""Users, ACLs and client configurations, for the handles of a broker and of a cluster."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pybroker.testing import clients, records, security
from pybroker.testing.clients import Config
from pybroker.testing.security import ClientLogin, Security
from pybroker.testing.tracebacks import hidden

if TYPE_CHECKING:
    from pybroker.client.net.connection import BrokerConnection
    from pybroker.security.acls import Permission


class Secured:
    """A handle whose clients use SASL, TLS or both, as `_security` says; None means neither."""

    _security: Security | None

    @property
    def bootstrap_servers(self) -> str:
        """The clients' host:port; for a cluster, those of all its brokers."""
        raise NotImplementedError

    def _connect_all(self) -> "list[BrokerConnection]":
        """Return a connection to each broker's listener without login, for changes of users and ACLs."""
        raise NotImplementedError

    @property
    def ca_file(self) -> str | None:
        """The CA file (PEM) of the brokers' certificate; None without `tls`."""
        return None if self._security is None or not self._security.tls else security.certificates().authority

    # -- users -----------------------------------------------------------------------------------------------------

    @property
    def users(self) -> Mapping[str, str]:
        """{name: password} of the users; clients log in as the first. Empty without `sasl`."""
        return {} if self._security is None else self._security.users

    @hidden
    def allow(self, user: str, *operations: str, prefixed: bool = False, **about: str | Iterable[str]) -> None:
        """Grant a user operations: allow("alice", "read", "write", topic="orders"). `about` is topic, group, cluster,
        transactional_id, each a name or several. Raises ValueError, KafkaError."""
        from pybroker.security.acls import Permission

        self._create_acls(user, Permission.ALLOW, operations, about, prefixed)

    @hidden
    def deny(self, user: str, *operations: str, prefixed: bool = False, **about: str | Iterable[str]) -> None:
        """Deny a user operations; a denial overrides every grant."""
        from pybroker.security.acls import Permission

        self._create_acls(user, Permission.DENY, operations, about, prefixed)

    def _create_acls(
        self, user: str, permission: "Permission", operations: tuple[str, ...],
        about: Mapping[str, str | Iterable[str]], prefixed: bool,
    ) -> None:  # fmt: skip
        if self._security is None or not self._security.acls:
            raise ValueError("this broker has no ACLs, so every user may do everything: make it with acls=True")
        made = security.acls_of(user, permission, operations, about, prefixed)
        with contextlib.ExitStack() as stack:
            first, *others = map(stack.enter_context, self._connect_all())
            security.create_acls(first, made)
            _wait_for(others, lambda each: security.has_acls(each, made))

    def _make_users(self) -> None:
        """Create the users of SCRAM, and wait until each broker knows them. Raises KafkaError, TimeoutError."""
        if (secured := self._security) is None or not secured.is_scram:
            return
        with contextlib.ExitStack() as stack:
            first, *others = map(stack.enter_context, self._connect_all())
            secured.make_users(first)
            _wait_for(others, secured.has_users)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _login(self, user: str | None) -> ClientLogin | None:
        if self._security is None and user is not None:
            raise ValueError(f"this broker has no login, so there is no user {user!r}: make it with sasl=True")
        return None if self._security is None else self._security.login(user)

    def confluent_config(
        self, group_id: str | None = None, *, user: str | None = None, **overrides: object
    ) -> Config:
        """For confluent-kafka: a consumer's with a group, else a producer's or admin's; linger_ms=5 is linger.ms.

        The client logs in as `user`, here and below; None: the first user."""
        return clients.confluent(self.bootstrap_servers, group_id, overrides, self._login(user))

    def kafka_python_config(
        self, group_id: str | None = None, *, user: str | None = None, **overrides: object
    ) -> Config:
        """For kafka-python: `KafkaProducer(**broker.kafka_python_config())`."""
        return clients.kafka_python(self.bootstrap_servers, group_id, overrides, self._login(user))

    def aiokafka_config(
        self, group_id: str | None = None, *, user: str | None = None, **overrides: object
    ) -> Config:
        """For aiokafka: `AIOKafkaConsumer("topic", **broker.aiokafka_config("group"))`."""
        return clients.aiokafka(self.bootstrap_servers, group_id, overrides, self._login(user))

    def pybroker_config(
        self, group_id: str | None = None, *, user: str | None = None, **overrides: object
    ) -> Config:
        """For pybroker's own clients: `Producer(**broker.pybroker_config())`."""
        return clients.pybroker(self.bootstrap_servers, group_id, overrides, self._login(user))

    def java_config(
        self, group_id: str | None = None, *, user: str | None = None, **overrides: object
    ) -> Config:
        """Properties for Java clients, Kafka's tools, and files for --command-config: {"security.protocol": ...}."""
        return clients.java(self.bootstrap_servers, group_id, overrides, self._login(user))


def _wait_for(brokers: "Iterable[BrokerConnection]", knows: "Callable[[BrokerConnection], bool]") -> None:
    """Return when each broker has received the change from the store. Raises TimeoutError."""
    deadline_s = time.monotonic() + records.TIMEOUT_S
    for broker in brokers:
        while not knows(broker):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"a broker has not received the change after {records.TIMEOUT_S:g} s")
            time.sleep(records.POLL_S)
