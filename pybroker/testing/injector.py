"""Faults on the broker's side: between a request and its handler, and between core and its files.

Everything happens on the broker's event loop. A rule catches the next `times` requests that match it; rules are tried
in the order in which they were made, and the first match catches the request:

    fail         answer with an error code, without executing the request
    delay        execute at once; answer after `seconds`, or when the rule is removed
    drop         execute and never answer; later requests on the connection are answered
    disconnect   close the connection instead of answering, after executing the request or instead of it
    stall        wait until the rule is removed, then execute as usual

Rules never catch requests of the kit's own client, with which a test produces and reads. While a rule may catch
requests that the native plane executes, the plane hands those to the handlers, too.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pybroker import core
from pybroker.decisions.caller import ANONYMOUS, Call, Disconnect
from pybroker.errors import KafkaError
from pybroker.protocol.apis import SERVED
from pybroker.server.api.dispatch import A, Answered, Handler, Q, done
from pybroker.server.broker import Broker, Table
from pybroker.testing.lifecycle import BrokerPlan
from pybroker.testing.records import CLIENT_ID

ALWAYS: Final = (1 << 31) - 1
"""The number of times that a failpoint of core can fire."""
NATIVE: Final = ("Produce", "Fetch")
"""The APIs that the native plane executes."""
_DISK: Final = ("segment.reserve", "segment.write", "segment.create", "disk.reserve")


@dataclass(eq=False, slots=True)
class FaultRule:
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
        """True if the rule may catch another request."""
        return self.times != 0 and not self.over.is_set()

    def takes(self, api: str, call: Call) -> bool:
        """True if the rule catches this request; counts it."""
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
    """The faults of one broker, which the injector makes: `Injector(plan).broker`."""

    def __init__(self, plan: BrokerPlan, make: Callable[..., Broker] = Broker) -> None:
        """`make` makes a broker from its configuration."""
        self.plan = plan
        ways = plan.ways
        how = {"reach": lambda number, at: at._replace(port=ways.get(str(number), at.port))} if ways else {}
        self.broker = make(plan.config(), through=self.through, **how)
        self._rules: dict[int, FaultRule] = {}
        self._commands: dict[str, Callable[..., object]] = {
            "add": self._add,
            "hits": self._hits,
            "remove": self._remove,
            "clear": self.clear,
            "disconnect": self.broker.disconnect,
            "rebalance": self._rebalance,
            "fill_disk": self._fill_disk,
            "free_disk": self._free_disk,
        }

    def execute(self, command: Mapping[str, object]) -> object:
        """Execute a test's command; the result can be written as JSON. Raises ValueError, KafkaError."""
        return self._commands[str(command["do"])](**{name: value for name, value in command.items() if name != "do"})

    # -- commands --------------------------------------------------------------------------------------------------

    def _add(self, rule: int, **fields: Any) -> None:
        self._rules[rule] = FaultRule(**fields)
        self._divert()

    def _hits(self, rule: int) -> int:
        if rule not in self._rules:
            raise ValueError("the fault ended when the broker was stopped")
        return self._rules[rule].hits

    def _remove(self, rule: int) -> None:
        """Remove a rule; does nothing if the rule ended with an earlier life of the broker."""
        if rule in self._rules:
            self._rules[rule].over.set()
            self._divert()

    def clear(self) -> None:
        """Remove every fault; stalled requests proceed."""
        for rule in self._rules.values():
            rule.over.set()
        self._divert()
        self._free_disk()

    def _divert(self) -> None:
        """Have the native plane hand over the requests that a rule may catch, or execute them again."""
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
        """Return the table with each handler behind the rules."""
        return {key: self._guarded(SERVED[key].name, handler) for key, handler in table.items()}

    def _guarded(self, api: str, handler: Handler[Q, A]) -> Handler[Q, A]:
        # The ApiVersions before a login is never caught: a rule that waits would keep the client from logging in.
        logins = any(name.endswith("sasl.enabled.mechanisms") for name in self.plan.settings)

        def by(request: Q, call: Call) -> Answered[A]:
            if api == "ApiVersions" and logins and call.caller.principal == ANONYMOUS:
                return handler.by(request, call)
            rule = next((rule for rule in self._rules.values() if rule.takes(api, call)), None)
            if rule is not None and not rule.lives:
                self._divert()
            return handler.by(request, call) if rule is None else _inflict(rule, handler, request, call)

        return Handler(by, handler.failed, handler.abandon)


def _inflict(rule: FaultRule, handler: Handler[Q, A], request: Q, call: Call) -> Answered[A]:
    """Serve a request that a rule caught. Raises KafkaError, Disconnect."""
    if rule.action == "fail":
        raise KafkaError(rule.code, "a test asked for this error")
    if rule.action == "disconnect" and not rule.executed:
        raise Disconnect("a test asked for it")
    if rule.action == "stall":
        return _stalled(rule, handler, request, call)
    return _executed(rule, handler.by(request, call))


async def _stalled(rule: FaultRule, handler: Handler[Q, A], request: Q, call: Call) -> A | None:
    await rule.over.wait()
    return await done(handler.by(request, call))


async def _executed(rule: FaultRule, answered: Answered[A]) -> A | None:
    """Delay, drop or cut off the answer to an executed request, as the rule says."""
    response = await done(answered)
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


def _let_go(response: object) -> None:
    """Unpin the files that a Fetch answer holds, as the answer is not sent."""
    for topic in getattr(response, "responses", ()):
        for partition in getattr(topic, "partitions", ()):
            if isinstance(partition.records, core.Slice):
                partition.records.close()
