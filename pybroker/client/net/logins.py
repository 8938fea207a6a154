"""The logins of one channel: the first, and the next before each ends (KIP-368), on the connection as it is.

    begin ──token there, if one is needed──> hold ──> SaslHandshake, SaslAuthenticate ... ──> open, until 85-95 % of the
      ^──────────────────────────────────────────────────────────────────────────────────────  time are over

During a login the channel holds back new requests; those under way are answered first. Tokens are fetched on a thread
of their own, while an open channel stays open. Everything here runs on the loop's thread.
"""

from functools import partial
from typing import Final, Protocol

from pybroker.client.net.loop import Loop, Timer
from pybroker.client.net.requests import Answered
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.protocol.message import Message, R, Request
from pybroker.security.login import Account, Login

_log = unfailing(__name__)

AGAIN_S: Final = 1.0
"""The pause before a failed request for a token is repeated, while the last login holds."""


class LoggedInChannel(Protocol):
    """A channel, as its logins see it."""

    ready: bool

    @property
    def address(self) -> str: ...
    def hold(self) -> None: ...
    def send_alone(self, message: Request[R], done: Answered[R]) -> None: ...
    def logged_in(self) -> None: ...
    def refused(self, error: KafkaError) -> None: ...


class ChannelLogins:
    """The logins of one channel."""

    def __init__(self, loop: Loop, account: Account, owner: LoggedInChannel) -> None:
        self._loop = loop
        self._account = account
        self._owner = owner
        self._turn = object()
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Log in, for the first time or again."""
        made = partial(self._made, self._turn)
        if self._account.tokens is None:
            made(Login(self._account, self._owner.address))
        else:
            self._loop.run(partial(Login, self._account, self._owner.address), made)

    def end(self) -> None:
        """Stop logging in: the connection is closed."""
        self._turn = object()
        if self._timer is not None:
            self._timer.cancel()

    def _made(self, turn: object, login: Login | KafkaError) -> None:
        if turn is not self._turn:
            return
        if isinstance(login, Login):
            self._owner.hold()
            self._owner.send_alone(login.start(), partial(self._go_on, login))
        elif self._owner.ready:
            _log.warning("%s; the client continues with its last login", login.message)
            self._timer = self._loop.call_later(AGAIN_S, self.begin)
        else:
            self._owner.refused(login)

    def _go_on(self, login: Login, answer: Message | None, error: KafkaError | None) -> None:
        """Take the answer to one step of a login, and send the next step."""
        if error is not None:
            self._owner.refused(error)
            return
        assert answer is not None
        try:
            message = login.step(answer)
        except KafkaError as refused:
            self._owner.refused(refused)
            return
        if message is not None:
            self._owner.send_alone(message, partial(self._go_on, login))
            return
        renew_in_s = login.renew_in_s()
        if renew_in_s is not None:
            self._timer = self._loop.call_later(renew_in_s, self.begin)
        self._owner.logged_in()
