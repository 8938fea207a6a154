"""The console as an ASGI application: its routes, and what each needs."""

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pybroker.console.clients import ViewerClients
from pybroker.console.guard import Guard
from pybroker.console.lags import LagSampler
from pybroker.console.login import LoginPage
from pybroker.console.pages import BadRequest, Busy, Forbidden, NotFound, Pages
from pybroker.console.sessions import BrowserSessions
from pybroker.console.settings import ConsoleSettings
from pybroker.console.views.brokers import BrokerPages
from pybroker.console.views.changes import ChangePages
from pybroker.console.views.groups import GroupPages
from pybroker.console.views.messages import MessagePages
from pybroker.console.views.moves import MovePages
from pybroker.console.views.overview import OverviewPage
from pybroker.console.views.security import SecurityPages
from pybroker.console.views.topic_clients import TopicClientsPage
from pybroker.console.views.topics import TopicPages
from pybroker.errors import KafkaError

Handler = Callable[[Request, Exception], Response]


def application(settings: ConsoleSettings, now_s: Callable[[], float] = time.monotonic) -> ASGIApp:
    """Return the console; `now_s` is the clock of its sessions."""
    pages = Pages(bootstrap=settings.bootstrap, allow_changes=settings.allow_changes)
    sessions = BrowserSessions(now_s)
    shared, sampler = ViewerClients(settings.bootstrap, settings.login, settings.timeout_s), LagSampler()
    login = LoginPage(settings, sessions, pages, shared, sampler, now_s)
    topics, brokers, groups = TopicPages(pages), BrokerPages(pages), GroupPages(pages)
    changes = ChangePages(pages, allow_changes=settings.allow_changes)
    moves = MovePages(pages)
    messages = MessagePages(pages, settings.bootstrap, settings.schemas)
    routes = [
        Route("/", OverviewPage(pages).show),
        Route("/topics", topics.all),
        Route("/topic", topics.one),
        Route("/clients", TopicClientsPage(pages).show),
        Route("/messages", messages.search),
        Route("/record", messages.record),
        Route("/tail", messages.tail),
        Route("/tail/events", messages.events),
        Route("/brokers", brokers.all),
        Route("/broker", brokers.one),
        Route("/groups", groups.all),
        Route("/group", groups.one),
        Route("/changes", moves.changes),
        Route("/moves", moves.moves),
        Route("/security", SecurityPages(pages).show),
        Route("/topic/create", changes.create_topic, methods=["POST"]),
        Route("/topic/delete", changes.delete_topic, methods=["POST"]),
        Route("/group/reset", changes.reset, methods=["POST"]),
        Route("/login", login.ask),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/logout", login.log_out, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("pybroker.console", "static")])),
    ]
    problems = (KafkaError, NotFound, BadRequest, Forbidden, Busy)
    handlers: dict[type[Exception], Handler] = dict.fromkeys(problems, pages.problem)
    handlers[HTTPException] = _not_served(pages)
    views = Starlette(routes=routes, exception_handlers=handlers)
    if not settings.cluster_login:
        sampler.watch(shared)
    return Guard(views, settings, sessions, shared)


def _not_served(pages: Pages) -> Handler:
    def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if "viewer" not in request.scope:  # of /static
            return Response(status_code=error.status_code)
        return pages.page(request, "problem.html", error.status_code, words="There is no such page.")

    return answer
