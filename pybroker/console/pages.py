"""Pages: templates, which escape what they show, and the words for numbers."""

from collections.abc import Iterable, Mapping
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pybroker import errors
from pybroker.console.guard import viewer_of
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.model import bytes_text
from pybroker.operations.times import time_text

ROWS_MAX: Final = 200
"""Rows of a table on one page, so that a page stays small."""
CODES: Final[Mapping[int, int]] = {
    errors.CLUSTER_AUTHORIZATION_FAILED: 403,
    errors.GROUP_AUTHORIZATION_FAILED: 403,
    errors.TOPIC_AUTHORIZATION_FAILED: 403,
    errors.UNKNOWN_TOPIC_OR_PARTITION: 404,
    errors.NETWORK_EXCEPTION: 502,
    errors.REQUEST_TIMED_OUT: 502,
    errors.SASL_AUTHENTICATION_FAILED: 502,
}
"""The HTTP status of answers of the cluster; of others it is 400."""


class NotFound(Exception):
    """The page is about something that does not exist; the text says what."""


class BadRequest(Exception):
    """The address or form has a value that is not allowed; the text says which."""


class Busy(Exception):
    """The console does as much of this as it may; the text says so."""


class Forbidden(Exception):
    """The console does not allow this; the text says why."""


def topic_of(request: Request) -> str:
    """Return the topic that a page is about. BadRequest for a name that no topic can have."""
    name = request.query_params.get("name", "").strip()
    try:
        check_name(name)
    except KafkaError as error:
        raise BadRequest(error.message) from error
    return name


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _size(number: int | None) -> str:
    return "-" if number is None else bytes_text(number)


def _ids(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


_templates: Final = Environment(
    loader=PackageLoader("pybroker.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_templates.filters |= {"count": _count, "size": _size, "time": time_text, "ids": _ids, "printable": printable}


class Pages:
    """Renders the pages of one console, whose templates know whether viewers may change anything."""

    def __init__(self, *, bootstrap: str, allow_changes: bool) -> None:
        self._common = {"bootstrap": bootstrap, "allow_changes": allow_changes}
        self._loaded = {name: _templates.get_template(name) for name in _templates.list_templates()}  # no view waits

    def page(self, request: Request, template: str, code: int = 200, **values: object) -> Response:
        """Return the answer with a page."""
        viewer = viewer_of(request)
        known = {**self._common, "csrf": viewer.csrf, "user": viewer.user, "path": request.url.path}
        return HTMLResponse(self._loaded[template].render({**known, **values}), code)

    def problem(self, request: Request, error: Exception) -> Response:
        """Return the page for a request that failed."""
        words, code = str(error), 400
        if isinstance(error, KafkaError):
            words, code = error.message, CODES.get(error.code, 400)
        else:
            code = {NotFound: 404, Forbidden: 403, Busy: 503}.get(type(error), 400)
        return self.page(request, "problem.html", code, words=words)
