"""The door of the console: each request passes the checks of host, session, login and form before a view sees it.

    Host is an address, localhost or a name that was allowed   else 421: a foreign name may be DNS rebinding
    a session, by its cookie                                   else a new one
    logged in, if the console has a login                      else 303 to /login
    POST: a small form of this origin with the session's token else 403

Every answer has a content security policy without inline scripts or styles, and is not kept by caches.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.console.clients import ViewerClients
from pybroker.console.sessions import BrowserSessions, Viewer
from pybroker.console.settings import ConsoleSettings

TOKEN: Final = "csrf"
FORM_BYTES_MAX: Final = 64 << 10
FIELDS_MAX: Final = 200
LOGIN: Final = "/login"
STATIC: Final = "/static/"
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class Guard:
    """Passes requests on to the views, with their viewer and the fields of their form."""

    def __init__(
        self, views: ASGIApp, settings: ConsoleSettings, sessions: BrowserSessions, shared: ViewerClients
    ) -> None:
        self._views = views
        self._settings = settings
        self._sessions = sessions
        self._shared = shared
        self._public = {name.lower() for name in settings.host_names}
        """Names that a proxy before the console may have replaced in the Host header."""
        self._hosts = {"localhost", settings.host.lower(), *self._public}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        cookies: list[str] = []

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in HEADERS.items() if h[0] not in own)]
                if b"set-cookie" not in own:
                    given = [set_cookie(each, self._settings).encode() for each in cookies]
                    message["headers"] += [(b"set-cookie", each) for each in given]
            await send(message)

        refused = self._refused_host(request)
        if refused is None and not request.url.path.startswith(STATIC):
            session = self._sessions.read(request.cookies.get(cookie_name(self._settings)))
            if session is None:
                cookies.append(self._sessions.begin())
                session = self._sessions.read(cookies[0])
            assert session is not None
            refused = await self._admit(request, session)
        await (refused or self._views)(scope, receive, with_headers)

    def _refused_host(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if self.is_own_host(host):
            return None
        words = "This console is not known by the name in the request. Start it with --host-name NAME to allow one.\n"
        return PlainTextResponse(words, 421)

    def is_own_host(self, host: str) -> bool:
        """True for an address, which no foreign page can have as its name, and for names of this console."""
        name = host.lower()
        if name.startswith("["):
            name = name.partition("]")[0][1:]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _is_own_page(self, request: Request) -> bool:
        """True if the form is on a page of this console, as far as the browser says; tokens are checked beside this."""
        origin = request.headers.get("origin")
        if origin is None:
            return True
        place = urlsplit(origin).netloc.lower()
        return place == request.headers.get("host", "").lower() or place.partition(":")[0] in self._public

    async def _admit(self, request: Request, session: str) -> Response | None:
        """Set the request's viewer and form; return the answer to a request that is refused."""
        known = self._sessions.find(session) if self._settings.needs_login else None
        user, clients = known if known is not None else (None, self._shared)
        request.scope["viewer"] = Viewer(clients, session, self._sessions.csrf(session), user)
        request.scope["form"] = {}
        if request.method == "POST":
            if not self._is_own_page(request):
                return PlainTextResponse("The form is on a page of another origin.\n", 403)
            fields = await _form(request)
            if fields is None:
                return PlainTextResponse("The form is too large, or not a form.\n", 400)
            token = fields.pop(TOKEN, "")
            if not hmac.compare_digest(token.encode(), self._sessions.csrf(session).encode()):
                words = "The form was not made by this console for your session. Go back, reload the page, try again.\n"
                return PlainTextResponse(words, 403)
            request.scope["form"] = fields
        elif request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and POST are served.\n", 405)
        if self._settings.needs_login and known is None and request.url.path != LOGIN:
            return RedirectResponse(LOGIN, 303)
        return None


async def _form(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None if it is too large, or none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return None
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            return None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return None


def cookie_name(settings: ConsoleSettings) -> str:
    """Return the name of the session's cookie, which has the port: browsers send cookies to all ports of a host."""
    return f"pybroker_console_{settings.port}"


def set_cookie(cookie: str, settings: ConsoleSettings) -> str:
    """Return the header that gives a browser its session."""
    secure = "" if settings.certificate is None else "; Secure"
    return f"{cookie_name(settings)}={cookie}; HttpOnly; SameSite=Strict; Path=/{secure}"


def viewer_of(request: Request) -> Viewer:
    """Return the viewer of a request that was admitted."""
    viewer = request.scope["viewer"]
    assert isinstance(viewer, Viewer)
    return viewer


def form_of(request: Request) -> dict[str, str]:
    """Return the fields of an admitted request's form, without its token."""
    form: dict[str, str] = request.scope["form"]
    return form
