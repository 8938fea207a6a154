"""The records of a topic: a search, one record as it is stored, and the live tail."""

import shlex
import threading
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pybroker.avro.writer_schemas import WriterSchemas
from pybroker.clock import wall_ms
from pybroker.console.avro_view import AvroView
from pybroker.console.filters import PATH_HELP, RecordFilter
from pybroker.console.guard import viewer_of
from pybroker.console.pages import BadRequest, Busy, NotFound, Pages, topic_of
from pybroker.console.rendering import AVRO, FORMATS, VALUES_MAX, RecordView, shown_record
from pybroker.console.searching import NEWEST, OFFSET, STARTS, TIME, Found, Limits, Search, find
from pybroker.console.tailing import TailEvents
from pybroker.operations.times import TIME_HELP, timestamp_ms

COUNTS: Final = (10, 25, 50)
TAILS_MAX: Final = 8
SEARCHES_MAX: Final = 8
"""Searches at the same time: each is a consumer, and seconds of a thread."""
FIELDS: Final = ("name", "partition", "start", "at", "text", "key", "json", "header", "as", "keys", "count")
OFFSET_MAX: Final = (1 << 63) - 1
RECORD_LIMITS: Final = Limits(records=1, seconds=10.0)


class MessagePages:
    """The pages about records."""

    def __init__(self, pages: Pages, bootstrap: str, schemas: WriterSchemas | None) -> None:
        self._pages = pages
        self._schemas = schemas
        self._formats = (*FORMATS, *(() if schemas is None else (AVRO,)))
        self._bootstrap = bootstrap
        self._tails = TailEvents(TAILS_MAX)
        self._searches = threading.BoundedSemaphore(SEARCHES_MAX)

    def search(self, request: Request) -> Response:
        asked = fields_of(request)
        search, view = search_of(asked), self._view(asked)
        found = self._find(request, search, Limits())
        shown = [shown_record(record, view, VALUES_MAX // search.most) for record in found.records]
        return self._pages.page(
            request, "messages.html", asked=asked, found=found, records=shown, counts=COUNTS, formats=self._formats,
            starts=STARTS, command=self.command(search, found), next=_next(asked, search, found),
            path_help=PATH_HELP, time_help=TIME_HELP, is_filtered=not search.wanted.is_empty,
            one=lambda record: self._one(search.topic, record.partition, record.offset),
        )  # fmt: skip

    def record(self, request: Request) -> Response:
        """Return the value of one record as a file, of any size."""
        asked = fields_of(request)
        search = search_of({**asked, "start": OFFSET, "count": str(COUNTS[0])})
        if search.partition is None:
            raise BadRequest("a record is in a partition: give partition")
        found = self._find(request, search._replace(most=1, wanted=RecordFilter()), RECORD_LIMITS)
        if not found.records or found.records[0].offset != search.at:
            raise NotFound(f"Partition {search.partition} of {search.topic} has no record at offset {search.at}.")
        name = f"record-{search.partition}-{search.at}.bin"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(found.records[0].value or b"", 200, headers, "application/octet-stream")

    def _view(self, asked: dict[str, str]) -> RecordView:
        """Return the formats that were asked for. BadRequest for one that does not exist."""
        for name in ("as", "keys"):
            if asked[name] not in self._formats:
                raise BadRequest(f"{name} is one of {', '.join(self._formats)}, not {asked[name][:50]!r}")
        return RecordView(asked["as"], asked["keys"], None if self._schemas is None else AvroView(self._schemas))

    def _find(self, request: Request, search: Search, limits: Limits) -> Found:
        """Return what a search finds. Busy if too many are under way."""
        if not self._searches.acquire(blocking=False):
            raise Busy(f"{SEARCHES_MAX} searches are under way, and no more may be: try again in a few seconds.")
        try:
            with viewer_of(request).clients.consumer() as consumer:
                return find(consumer, search, limits)
        finally:
            self._searches.release()

    def tail(self, request: Request) -> Response:
        asked = fields_of(request)
        search_of(asked)
        self._view(asked)
        events = urlencode({name: value for name, value in asked.items() if value})
        return self._pages.page(
            request, "tail.html", asked=asked, events=f"/tail/events?{events}", formats=self._formats,
            path_help=PATH_HELP,
        )  # fmt: skip

    async def events(self, request: Request) -> Response:
        if self._tails.is_full:
            return Response("Too many live tails are open.\n", 503)
        asked = fields_of(request)
        search = search_of(asked)
        stream = self._tails.events(
            viewer_of(request).clients, search.topic, search.partition, search.wanted, self._view(asked)
        )
        return StreamingResponse(stream, media_type="text/event-stream")

    def command(self, search: Search, found: Found) -> str:
        """Return the command that prints the records of a search, without its filter."""
        words = ["pybroker", "consume", search.topic, "-b", self._bootstrap]
        if search.partition is not None:
            words += ["--partition", str(search.partition)]
        if search.start == NEWEST:
            words += ["--last", str(search.most)]
        else:
            begin = ["--at", str(search.at)] if search.start == TIME else ["--offset", str(search.at)]
            words += [*begin, "--max-messages", str(found.read or search.most), "--exit-at-end"]
        return shlex.join([*words, "--json"])

    def _one(self, topic: str, partition: int, offset: int) -> str:
        words = ["pybroker", "consume", topic, "-b", self._bootstrap, "--partition", str(partition)]
        return shlex.join([*words, "--offset", str(offset), "--max-messages", "1", "--json"])


def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a search, as typed."""
    default = {"start": NEWEST, "as": FORMATS[0], "keys": FORMATS[0], "count": str(COUNTS[1])}
    typed = {name: request.query_params.get(name, "").strip() or default.get(name, "") for name in FIELDS}
    return {**typed, "name": topic_of(request)}


def search_of(asked: dict[str, str]) -> Search:
    """Return the search that was typed. BadRequest if a field is not allowed."""
    if asked["start"] not in STARTS:
        raise BadRequest(f"start is one of {', '.join(STARTS)}, not {asked['start'][:50]!r}")
    count = _number(asked["count"], "count")
    if not 1 <= count <= COUNTS[-1]:
        raise BadRequest(f"count is from 1 to {COUNTS[-1]}, not {count}")
    partition = _number(asked["partition"], "partition") if asked["partition"] else None
    at = 0
    if asked["start"] == OFFSET:
        at = _number(asked["at"] or "0", "an offset")
    elif asked["start"] == TIME:
        try:
            at = timestamp_ms(asked["at"], wall_ms())
        except (ValueError, OverflowError) as error:
            raise BadRequest(f"{asked['at'][:50]!r} is not a time: {TIME_HELP}") from error
    try:
        wanted = RecordFilter.of(asked["text"], asked["key"], asked["json"], asked["header"])
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return Search(asked["name"], partition, asked["start"], at, count, wanted)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= OFFSET_MAX):
        raise BadRequest(f"{what} is a number, not {text[:50]!r}")
    return int(text)


def _next(asked: dict[str, str], search: Search, found: Found) -> str:
    """Return the query of the records that follow; empty where they are not known."""
    if search.start == NEWEST or search.partition is None or len(found.records) < search.most:
        return ""
    return urlencode({**asked, "start": OFFSET, "at": found.records[-1].offset + 1})
