"""Changes of the cluster: topics that are created and deleted, offsets of groups that are reset.

Each needs --allow-changes, and the viewer's right in the cluster. A reset is planned first: what is carried out is the
plan that was shown, and only if nothing was committed in between.
"""

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pybroker.client.admin import BROKER_DEFAULT, Admin, Committed
from pybroker.clock import wall_ms
from pybroker.console.guard import form_of, viewer_of
from pybroker.console.pages import BadRequest, Forbidden, NotFound, Pages
from pybroker.model import TopicPartition
from pybroker.operations import offset_reset
from pybroker.operations.offset_reset import SHIFT_BY, TO_EARLIEST, TO_LATEST, TO_OFFSET, TO_TIME, OffsetMove
from pybroker.operations.times import TIME_HELP, timestamp_ms

KINDS: Final = {
    TO_EARLIEST: "to the first record",
    TO_LATEST: "to the end",
    TO_OFFSET: "to this offset",
    TO_TIME: "to this time",
    SHIFT_BY: "by so many records (negative: back)",
}
NUMBER_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
PLAN_PARTITIONS_MAX: Final = 1000
"""Partitions of a reset, whose plan is in a form."""


class PlannedOffset(NamedTuple):
    """One partition of a plan: the committed offset that was shown, -1 for none, and the new one."""

    partition: int
    old: int
    new: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.old}:{self.new}"


class ChangePages:
    """The forms that change a cluster."""

    def __init__(self, pages: Pages, *, allow_changes: bool) -> None:
        self._pages = pages
        self._allowed = allow_changes

    def create_topic(self, request: Request) -> Response:
        form = self._form(request)
        name = form.get("name", "").strip()
        partitions, replicas = (_optional(form, each, 1, NUMBER_MAX) for each in ("partitions", "replicas"))
        configs = dict(_configs(form.get("configs", "")))
        with viewer_of(request).clients.admin() as admin:
            admin.create_topic(name, partitions=partitions, replication_factor=replicas, configs=configs)
        return RedirectResponse(f"/topic?{urlencode({'name': name})}", 303)

    def delete_topic(self, request: Request) -> Response:
        form = self._form(request)
        name = form.get("name", "")
        if form.get("confirm") != name:
            raise BadRequest(f"To delete topic {name} with its records, type its name.")
        with viewer_of(request).clients.admin() as admin:
            admin.delete_topic(name)
        return RedirectResponse("/topics", 303)

    def reset(self, request: Request) -> Response:
        """Show the plan of a reset, or carry out one that was shown."""
        form = self._form(request)
        group, topic = form.get("id", ""), form.get("topic", "")
        with viewer_of(request).clients.admin() as admin:
            offset_reset.check_inactive(admin, group)
            committed = admin.group_offsets([group])[group]
            if "plan" in form:
                steps = _plan(form["plan"])
                _check_same(topic, steps, committed)
                admin.alter_group_offsets(
                    group, {TopicPartition(topic, step.partition): Committed(step.new) for step in steps}
                )
                return RedirectResponse(f"/group?{urlencode({'id': group})}", 303)
            moves = _moves(admin, topic, committed, form)
        steps = [
            PlannedOffset(move.partition.partition, -1 if move.old is None else move.old, move.new) for move in moves
        ]
        return self._pages.page(
            request, "reset.html", group=group, topic=topic, moves=moves, plan=",".join(map(str, steps))
        )

    def _form(self, request: Request) -> dict[str, str]:
        if not self._allowed:
            raise Forbidden("This console is read-only: it was started without --allow-changes.")
        return form_of(request)


def _moves(
    admin: Admin, topic: str, committed: dict[TopicPartition, Committed], form: dict[str, str]
) -> list[OffsetMove]:
    """Return the moves of a topic's partitions that a form asks for."""
    kind = form.get("kind", "")
    if kind not in KINDS:
        raise BadRequest(f"A reset is one of {', '.join(KINDS)}, not {kind[:50]!r}")
    value = _value(kind, form.get("value", "").strip())
    (found,) = admin.topics([topic])
    partitions = [TopicPartition(topic, p.partition) for p in found.partitions]
    if len(partitions) > PLAN_PARTITIONS_MAX:
        words = f"Topic {topic} has {len(partitions):,} partitions, too many for this form: use pybroker groups."
        raise BadRequest(words)
    if not partitions:
        raise NotFound(f"Topic {topic} has no partitions.")
    if kind == SHIFT_BY:
        partitions = [tp for tp in partitions if tp in committed] or partitions
    return offset_reset.moves(
        admin, partitions, committed, offset_reset.new_offsets(admin, partitions, committed, kind, value)
    )


def _check_same(topic: str, steps: list[PlannedOffset], committed: dict[TopicPartition, Committed]) -> None:
    """BadRequest if another offset was committed since the plan was shown."""
    for step in steps:
        at = committed.get(TopicPartition(topic, step.partition))
        if step.old != (-1 if at is None else at.offset):
            words = f"The group has committed for {topic}-{step.partition} since the plan was shown: plan again."
            raise BadRequest(words)


def _plan(text: str) -> list[PlannedOffset]:
    """Return the steps in a form's plan. BadRequest if it is none."""
    steps = []
    for word in text.split(","):
        try:
            partition, old, new = map(int, word.split(":"))
        except ValueError:
            raise BadRequest("The plan is not one of this console: plan again.") from None
        if not (0 <= partition <= NUMBER_MAX and -1 <= old <= OFFSET_MAX and 0 <= new <= OFFSET_MAX):
            raise BadRequest("The plan is not one of this console: plan again.")
        steps.append(PlannedOffset(partition, old, new))
    return steps


def _value(kind: str, text: str) -> int:
    """Return the offset, the time or the shift of a reset; 0 where it needs none."""
    if kind in (TO_EARLIEST, TO_LATEST):
        return 0
    parse: Callable[[str], int] = (lambda time: timestamp_ms(time, wall_ms())) if kind == TO_TIME else int
    try:
        value = parse(text)
    except (ValueError, OverflowError):
        value = OFFSET_MAX + 1
    if not (-OFFSET_MAX if kind == SHIFT_BY else 0) <= value <= OFFSET_MAX:
        raise BadRequest(f"{text[:50]!r} is not {'a time: ' + TIME_HELP if kind == TO_TIME else 'a number of records'}")
    return value


def _optional(form: dict[str, str], name: str, least: int, most: int) -> int:
    """Return a number of a form; the broker's default if it is empty."""
    text = form.get(name, "").strip()
    if not text:
        return BROKER_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= most):
        raise BadRequest(f"{name} is a number from {least}, not {text[:50]!r}")
    return int(text)


def _configs(text: str) -> list[tuple[str, str]]:
    """Return the settings of a form, a NAME=VALUE on each line."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise BadRequest(f"{line[:50]!r} is not NAME=VALUE")
        found.append((name.strip(), value.strip()))
    return found
