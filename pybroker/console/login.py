"""The login of viewers: with the name and password of the console, or with their own of the cluster."""

import hashlib
import hmac
import math
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pybroker.console.clients import ViewerClients
from pybroker.console.guard import LOGIN, form_of, set_cookie, viewer_of
from pybroker.console.lags import LagSampler
from pybroker.console.pages import Pages
from pybroker.console.sessions import Attempts, BrowserSessions
from pybroker.console.settings import ConsoleSettings
from pybroker.errors import KafkaError


class LoginPage:
    """The page that asks for a password, and what it leads to."""

    def __init__(
        self, settings: ConsoleSettings, sessions: BrowserSessions, pages: Pages, shared: ViewerClients,
        sampler: LagSampler, now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._sessions = sessions
        self._pages = pages
        self._shared = shared
        self._sampler = sampler
        self._attempts = Attempts(now_s)

    async def ask(self, request: Request) -> Response:
        if not self._settings.needs_login:
            return RedirectResponse("/", 303)
        return self._page(request)

    async def log_in(self, request: Request) -> Response:
        """Check a password, unless this address has tried too many wrong ones."""
        if not self._settings.needs_login:
            return RedirectResponse("/", 303)
        address = request.client.host if request.client is not None else ""
        wait_s = self._attempts.wait_s(address)
        if wait_s > 0:
            seconds = math.ceil(wait_s)
            page = self._page(request, 429, f"Too many attempts failed. Try again in {seconds} s.")
            page.headers["retry-after"] = str(seconds)
            return page
        self._attempts.begin(address)
        form = form_of(request)
        user, password = form.get("user", ""), form.get("password", "")
        try:
            clients = await run_in_threadpool(self._clients_of, user, password)
        except KafkaError as error:
            return self._page(request, 403, f"The cluster did not accept this login: {error.message}")
        if clients is None:
            return self._page(request, 403, "The name or the password is wrong.")
        self._attempts.succeeded(address)
        cookie = self._sessions.begin()  # a new one: the one before may have been planted
        session = self._sessions.read(cookie)
        assert session is not None
        self._sessions.log_in(session, user, clients)
        if self._settings.cluster_login:  # others have the login that is sampled from the start
            self._sampler.watch(clients)
        return RedirectResponse("/", 303, {"set-cookie": set_cookie(cookie, self._settings)})

    async def log_out(self, request: Request) -> Response:
        self._sessions.log_out(viewer_of(request).session)
        return RedirectResponse(LOGIN, 303)

    def _clients_of(self, user: str, password: str) -> ViewerClients | None:
        """Return the clients for a name and password; None if they are wrong. KafkaError if the cluster refuses."""
        s = self._settings
        if s.cluster_login:
            if not user or not password:
                return None
            login = {**s.login, "sasl_username": user, "sasl_password": password}
            clients = ViewerClients(s.bootstrap, login, s.timeout_s)
            with clients.admin() as admin:
                admin.describe_cluster()
            return clients
        named = _is_same(user, s.user or "")
        if not (_is_same(password, s.password) and named):
            return None
        return ViewerClients(s.bootstrap, s.login, s.timeout_s, self._shared.lags)

    def _page(self, request: Request, code: int = 200, problem: str = "") -> Response:
        whose = "cluster" if self._settings.cluster_login else "console"
        return self._pages.page(request, "login.html", code, problem=problem, whose=whose)


def _is_same(given: str, right: str) -> bool:
    """Compare texts in a time that depends on neither."""
    first, second = (hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in (given, right))
    return hmac.compare_digest(first, second)
