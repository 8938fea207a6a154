"""Faults on the broker's side: between a request and its handler, and between core and its files.

Everything happens on the broker's event loop. A rule takes the next `times` requests that it fits; the first rule that
fits has the request, and rules are asked in the order in which they were made:

    fail         the request is not executed and answered with an error code
    delay        executed at once, answered after `seconds` or when the rule is taken back
    drop         executed and never answered; what comes behind it on the connection is
    disconnect   the connection is closed instead of an answer, after it was executed or instead of that
    stall        not executed until the rule is taken back, then as if nothing had been

Requests of the kit's own client, which a test produces and reads with, meet no rule. While there is a rule for what the
native plane executes, the plane hands that to the handlers, too.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pybroker import core
from pybroker.cluster.caller import ANONYMOUS, Call, Disconnect
from pybroker.errors import KafkaError
from pybroker.protocol.apis import SERVED
from pybroker.server.broker import Broker, Table
from pybroker.server.dispatch import Handler
from pybroker.server.process import broker_of
from pybroker.testing.life import Plan
from pybroker.testing.records import CLIENT_ID

ALWAYS: Final = (1 << 31) - 1
"""So often does a failpoint of core fire at most."""
NATIVE: Final = ("Produce", "Fetch")
"""The APIs that the native plane executes."""
_DISK: Final = ("segment.reserve", "segment.write", "segment.create", "disk.reserve")


@dataclass(eq=False, slots=True)
class Rule:
    """One fault; `times` counts down (None: never), `hits` up. `code`, `seconds`, `executed` belong to actions."""

    action: str
    api: str | None
    times: int | None
    after: int
    client_id: str | None
    code: int = 0
    seconds: float = 0.0
    executed: bool = True
    hits: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lives(self) -> bool:
        """May it catch another request?"""
        return self.times != 0 and not self.over.is_set()

    def takes(self, api: str, call: Call) -> bool:
        """Does it catch this request? If so, that counts."""
        if not self.lives or self.api not in (None, api) or call.client_id == CLIENT_ID:
            return False
        if self.client_id not in (None, call.client_id):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


class Injector:
    """The faults of one broker, which it makes: `Injector(plan).broker`."""

    def __init__(self, plan: Plan, make: Callable[..., Broker] = broker_of) -> None:
        """`make`: a broker of its configuration."""
        self.plan = plan
        ways = plan.ways
        how = {"reach": lambda number, at: at._replace(port=ways.get(str(number), at.port))} if ways else {}
        self.broker = make(plan.config(), through=self.through, **how)
        self._rules: dict[int, Rule] = {}
        self._commands: dict[str, Callable[..., Any]] = {
            "add": self._add,
            "hits": self._hits,
            "remove": self._remove,
            "clear": self.clear,
            "disconnect": self.broker.disconnect,
            "rebalance": self._rebalance,
            "fill_disk": self._fill_disk,
            "free_disk": self._free_disk,
        }

    def execute(self, command: Mapping[str, Any]) -> Any:
        """Do what a test asks for; what it gives back can be written as JSON. Raises ValueError, KafkaError."""
        return self._commands[command["do"]](**{name: value for name, value in command.items() if name != "do"})

    # -- commands --------------------------------------------------------------------------------------------------

    def _add(self, rule: int, **fields: Any) -> None:
        self._rules[rule] = Rule(**fields)
        self._divert()

    def _hits(self, rule: int) -> int:
        if rule not in self._rules:
            raise ValueError("the fault ended with the life of the broker that it was in")
        return self._rules[rule].hits

    def _remove(self, rule: int) -> None:
        """Of a fault that ended with the broker's earlier life nothing is left to do."""
        if rule in self._rules:
            self._rules[rule].over.set()
            self._divert()

    def clear(self) -> None:
        """Take every fault back; what was stalled goes on."""
        for rule in self._rules.values():
            rule.over.set()
        self._divert()
        self._free_disk()

    def _divert(self) -> None:
        """Have the native plane hand over what a rule may catch, or execute it again."""
        if self.broker.replicas is not None:
            rules = self._rules.values()
            self.broker.replicas.divert(any(rule.api in (None, *NATIVE) and rule.lives for rule in rules))

    def _rebalance(self, group: str) -> None:
        assert self.broker.groups is not None
        self.broker.groups.members.force_rebalance(group, "a test asked for it")

    def _fill_disk(self) -> None:
        assert self.broker.replicas is not None
        for point in _DISK:
            self.broker.replicas.arm(point, errno.ENOSPC, ALWAYS)

    def _free_disk(self) -> None:
        if self.broker.replicas is not None:
            self.broker.replicas.disarm()
            for log_dir in self.broker.log_dirs:
                log_dir.space.look(at_once=True)

    # -- in front of the handlers ----------------------------------------------------------------------------------

    def through(self, table: Table) -> Table:
        """The same table, each handler behind the rules."""
        return {key: self._guarded(SERVED[key].name, handler) for key, handler in table.items()}

    def _guarded(self, api: str, handler: Handler) -> Handler:
        # A login is answered at once: with a rule that waits it would never end.
        logins = any(name.endswith("sasl.enabled.mechanisms") for name in self.plan.settings)

        def by(request: Any, call: Call) -> Any:
            if api == "ApiVersions" and logins and call.caller.principal == ANONYMOUS:
                return handler.by(request, call)
            rule = next((rule for rule in self._rules.values() if rule.takes(api, call)), None)
            if rule is not None and not rule.lives:
                self._divert()
            return handler.by(request, call) if rule is None else _inflict(rule, handler, request, call)

        return Handler(by, handler.failed, handler.abandon)


def _inflict(rule: Rule, handler: Handler, request: Any, call: Call) -> Any:
    """Serve a request that a rule took. Raises KafkaError, Disconnect."""
    if rule.action == "fail":
        raise KafkaError(rule.code, "a test asked for this error")
    if rule.action == "disconnect" and not rule.executed:
        raise Disconnect("a test asked for it")
    if rule.action == "stall":
        return _stalled(rule, handler, request, call)
    return _executed(rule, handler.by(request, call))


async def _stalled(rule: Rule, handler: Handler, request: Any, call: Call) -> Any:
    await rule.over.wait()
    response = handler.by(request, call)
    return await response if isinstance(response, Coroutine) else response


async def _executed(rule: Rule, response: Any) -> Any:
    """What becomes of the answer to a request that was executed."""
    if isinstance(response, Coroutine):
        response = await response
    if rule.action == "delay":
        try:
            async with asyncio.timeout(rule.seconds):
                await rule.over.wait()
        except TimeoutError:
            pass
        return response
    _let_go(response)
    if rule.action == "disconnect":
        raise Disconnect("a test asked for it")
    return None


def _let_go(response: Any) -> None:
    """Unpin the files that a Fetch answer holds which is not sent."""
    for topic in getattr(response, "responses", ()):
        for partition in getattr(topic, "partitions", ()):
            if isinstance(partition.records, core.Slice):
                partition.records.close()
