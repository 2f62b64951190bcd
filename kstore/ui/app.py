"""The application: which address shows what, as a page and as JSON, and what is served besides the pages.

A few files are served, by their names in a table here. Answers are made in threads, because they read files.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache, partial
from importlib import resources
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from kstore.errors import KstoreError
from kstore.ui.checking import Checks
from kstore.ui.following import FOLLOWERS_MAX, PAUSE_SECONDS, follow
from kstore.ui.guard import Guard, Send
from kstore.ui.pages import Model, NotHereError, Pages
from kstore.ui.places import Place
from kstore.ui.rendering import Render, renderer
from kstore.ui.search_pages import LIMITS, Asked, Limits, search_model
from kstore.ui.searching import Searches
from kstore.ui.survey import Survey

TOPIC = "/logs/{number}/{topic}"
GROUP = "/groups/{number}/{group}"
LOG = TOPIC + "/{partition}"
SEGMENT = LOG + "/{base}"
BATCH = SEGMENT + "/{position}"
RECORD = BATCH + "/{offset}"
# By name: the type, and the files of packages that make it, one after another.
STATIC = {
    "style.css": ("text/css; charset=utf-8", ("kstore.reports/templates/style.css", "kstore.ui/static/ui.css")),
    "icon.svg": ("image/svg+xml", ("kstore.ui/static/icon.svg",)),
    "ui.js": ("text/javascript; charset=utf-8", ("kstore.ui/static/ui.js",)),
}
HTML, JSON, EVENTS = "text/html; charset=utf-8", "application/json", "text/event-stream"
TWIN = ".json"
UNCHECKED: Model = {"level": "none", "text": "Nothing was checked for this page."}

ModelOf = Callable[[Request], Model]


def guarded_app(
    survey: Survey,
    checks: Checks,
    *,
    port: int,
    is_stopping: Callable[[], bool],
    pause_seconds: float = PAUSE_SECONDS,
    limits: Limits = LIMITS,
) -> Guard:
    """The whole application on a ``survey`` that was started. Raises: MissingExtraError without Jinja2.

    Args:
        port: the server's, for the cookie's name.
        is_stopping: whether the server waits for its last answers, which followers end for it.
        limits: where a search ends.
        pause_seconds: the least time between two events of a follower.
    """
    answers = _Answers(Pages(survey, checks), renderer(), Searches(limits), is_stopping, pause_seconds)
    handlers = {NotHereError: answers.not_here, HTTPException: answers.not_here, KstoreError: answers.unreadable}
    app = Starlette(routes=_routes(answers), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, port=port)


def _routes(answers: _Answers) -> list[Any]:
    pages: list[tuple[str, str, ModelOf]] = [
        (TOPIC, "topic", answers.topic),
        (LOG, "partition", answers.partition),
        (LOG + "/live", "live", answers.live),
        (LOG + "/explain", "explain", answers.explain),
        (SEGMENT, "segment", answers.segment),
        (BATCH, "batch", answers.batch),
        (RECORD, "record", answers.record),
    ]
    pages += [(GROUP, "group", answers.group), ("/search", "search", answers.search)]
    routes = [
        Route("/", partial(answers.page, "overview", answers.overview)),
        Route(f"/overview{TWIN}", partial(answers.twin, answers.overview)),
        Route("/search/events", answers.search_events),
        Route("/static/{name}", answers.static),
        Route(LOG + "/jump", answers.jump),
        Route(LOG + "/live/events", answers.events),
    ]
    for path in ("", TOPIC, LOG):
        routes += [
            Route(f"{path}/check", answers.check, methods=["POST"]),
            Route(f"{path}/check/cancel", answers.cancel_check, methods=["POST"]),
        ]
    for path, name, model_of in pages:
        # The twin first: a page's last part takes any name.
        routes += [
            Route(path + TWIN, partial(answers.twin, model_of)),
            Route(path, partial(answers.page, name, model_of)),
        ]
    return routes


class _Events(StreamingResponse):  # type: ignore[misc]  # untyped for us
    """Events until the browser leaves; then what sends them ends before anything else."""

    async def stream_response(self, send: Send) -> None:
        events = self.body_iterator
        assert isinstance(events, AsyncGenerator)
        async with aclosing(events):
            await super().stream_response(send)


class _Answers:
    """Answers requests. Thread-safe."""

    def __init__(
        self, pages: Pages, render: Render, searches: Searches, is_stopping: Callable[[], bool], pause_seconds: float
    ) -> None:
        self._pages = pages
        self._render = render
        self._is_stopping = is_stopping
        self._pause_seconds = pause_seconds
        self._searches = searches
        self._limiter = anyio.CapacityLimiter(FOLLOWERS_MAX)

    def page(self, name: str, model_of: ModelOf, request: Request) -> Response:
        return Response(self._render(name, model_of(request)), media_type=HTML)

    def twin(self, model_of: ModelOf, request: Request) -> Response:
        return Response(json.dumps(model_of(request), separators=(",", ":")), media_type=JSON)

    # --- the models of pages ----------------------------------------------------------------------------------------

    def overview(self, request: Request) -> Model:
        return self._pages.overview(_query(request, "q"))

    def topic(self, request: Request) -> Model:
        return self._pages.topic(_part(request, "number"), _part(request, "topic"))

    def group(self, request: Request) -> Model:
        return self._pages.group(_part(request, "number"), _part(request, "group"))

    def search(self, request: Request) -> Model:
        found, total = self._pages.wanted(_asked_for(request))
        return search_model(found, total, self._searches.limits)

    def partition(self, request: Request) -> Model:
        return self._pages.partition(self._place(request), _query(request, "from"))

    def live(self, request: Request) -> Model:
        return self._pages.live(self._place(request))

    def explain(self, request: Request) -> Model:
        return self._pages.explain(self._place(request), _query(request, "to"))

    def segment(self, request: Request) -> Model:
        return self._pages.segment(self._place(request), _part(request, "base"), _query(request, "position"))

    def batch(self, request: Request) -> Model:
        base, position = _part(request, "base"), _part(request, "position")
        return self._pages.batch(self._place(request), base, position, _query(request, "first"))

    def record(self, request: Request) -> Model:
        base, position, offset = (_part(request, name) for name in ("base", "position", "offset"))
        return self._pages.record(self._place(request), base, position, offset, _query(request, "as"))

    def _place(self, request: Request) -> Place:
        return self._pages.place(_part(request, "number"), _part(request, "topic"), _part(request, "partition"))

    # --- the rest ---------------------------------------------------------------------------------------------------

    def jump(self, request: Request) -> Response:
        return RedirectResponse(self._pages.jump(self._place(request), _query(request, "to")), 303)

    def check(self, request: Request) -> Response:
        """Begins to check every byte of a log, of a topic's, or of all, and leads back to their page."""
        places, url = self._asked(request)
        self._pages.checks.ask(places)
        return RedirectResponse(url, 303)

    def cancel_check(self, request: Request) -> Response:
        places, url = self._asked(request)
        self._pages.checks.cancel(places)
        return RedirectResponse(url, 303)

    def _asked(self, request: Request) -> tuple[list[Place], str]:
        """The logs that a request is about, and their page."""
        if "partition" in request.path_params:
            place = self._place(request)
            return [place], place.url
        if "topic" in request.path_params:
            places = self._pages.places_of(_part(request, "number"), _part(request, "topic"))
            return places, places[0].topic_url
        return self._pages.places_of(), "/"

    def events(self, request: Request) -> Response:
        place = self._place(request)
        # A browser that connects again says where it was.
        start = request.headers.get("last-event-id", "") or _query(request, "from")
        stream = follow(
            place,
            partial(self._pages.open, place),
            int(start) if start.isascii() and start.isdigit() and len(start) < 20 else None,
            self._is_stopping,
            limiter=self._limiter,
            pause_seconds=self._pause_seconds,
        )
        return _Events(stream, media_type=EVENTS)

    def search_events(self, request: Request) -> Response:
        found, total = self._pages.wanted(_asked_for(request))
        if found.pattern is None:
            raise NotHereError(found.problem or "There is nothing to search for.")
        stream = self._searches.events(found.pattern, found.places, total, self._is_stopping)
        return _Events(stream, media_type=EVENTS)

    def static(self, request: Request) -> Response:
        name = _part(request, "name")
        if name not in STATIC:
            raise NotHereError("There is no such file.")
        return Response(_file(name), media_type=STATIC[name][0])

    def not_here(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            return self._problem(request, 405, "This page does not answer that method.")
        return self._problem(request, 404, str(error) if isinstance(error, NotHereError) else "There is no such page.")

    def unreadable(self, request: Request, error: Exception) -> Response:
        return self._problem(request, 503, str(error))

    def _problem(self, request: Request, status: int, text: str) -> Response:
        if request.url.path.endswith(TWIN):
            return Response(json.dumps({"problem": text}), status, media_type=JSON)
        return Response(
            self._render("problem", {"status": status, "text": text, "checked": UNCHECKED}), status, media_type=HTML
        )


def _query(request: Request, name: str) -> str:
    return str(request.query_params.get(name, ""))


def _asked_for(request: Request) -> Asked:
    return Asked(*(_query(request, name) for name in ("q", "in", "mode", "field", "case")))


def _part(request: Request, name: str) -> str:
    return str(request.path_params[name])


@cache
def _file(name: str) -> bytes:
    """The file that is served under this name, which is one of STATIC."""
    found = []
    for path in STATIC[name][1]:
        package, _, rest = path.partition("/")
        found.append(resources.files(package).joinpath(rest).read_bytes())
    return b"".join(found)
