"""The monitor's web server: the page, its data, and what Prometheus and an orchestrator ask.

What lives here: the routes and the headers.  What never lives here: what is shown (``chronicle``,
``broadcast``) and where it comes from (``program``).

    /                 the page; /static/NAME what it consists of
    /api/stream       server-sent events: one whole picture, then what changes
    /api/state        the whole picture once
    /api/at?time=T    the picture as it was at unix time T
    /api/facts?before=N&limit=M   older facts
    /metrics  /healthz  /readyz

It only ever reads: there is no route that changes anything.  Nothing said on the bus becomes HTML:
it travels as JSON and the page makes text nodes of it; the content security policy forbids any
script that is not one of the page's own files.  ``Host`` is checked, so a web page elsewhere cannot
reach a monitor on loopback by a name of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainmover.monitor.broadcast import Broadcast, Subscriber, moment
from trainmover.monitor.chronicle import Chronicle

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
HEALTH: Final = frozenset({"/healthz", "/readyz"})
KEEP_ALIVE_SECONDS: Final = 10.0
FACTS_AT_MOST: Final = 1000

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Site:
    """The web side of one monitor.

    Args:
        chronicle: what is shown.
        broadcast: who is sent what.
        registry: the figures for Prometheus.
        missing: what is not there yet, in words; empty: ready.
    """

    def __init__(
        self,
        chronicle: Chronicle,
        broadcast: Broadcast,
        registry: CollectorRegistry,
        missing: Callable[[], Sequence[str]],
    ) -> None:
        self._chronicle = chronicle
        self._broadcast = broadcast
        self._registry = registry
        self._missing = missing
        self._files = _page_files()

    def app(self, hosts: Sequence[str] = LOOPBACK) -> Starlette:
        """The application; ``hosts`` are the names that it may be asked by (``*``: any)."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name:path}", self._static),
                Route("/api/stream", self._stream),
                Route("/api/state", self._state),
                Route("/api/at", self._at),
                Route("/api/facts", self._facts),
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ],
            middleware=[
                Middleware(_Headers),
                Middleware(_KnownNames, allowed_hosts=list(hosts), www_redirect=False),
                Middleware(GZipMiddleware, minimum_size=2048),
            ],
        )

    async def _page(self, request: Request) -> Response:
        return self._file("index.html")

    async def _static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(found, media_type=TYPES["." + name.rpartition(".")[2]])

    async def _state(self, request: Request) -> Response:
        return _json(self._broadcast.hello())

    async def _stream(self, request: Request) -> Response:
        subscriber = self._broadcast.subscribe()
        if subscriber is None:
            return PlainTextResponse("too many are looking already\n", 503, {"Retry-After": "10"})
        return StreamingResponse(
            self._frames(subscriber),
            media_type="text/event-stream",
            # A proxy in between must not collect frames.
            headers={"X-Accel-Buffering": "no"},
        )

    async def _frames(self, subscriber: Subscriber) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 1000\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        frame = await subscriber.frames.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if frame is None:
                    return
                yield frame
        finally:
            self._broadcast.leave(subscriber)

    async def _at(self, request: Request) -> Response:
        time = _number(request.query_params.get("time"))
        if time is None:
            return PlainTextResponse("say which moment: /api/at?time=UNIX_SECONDS\n", 400)
        return _json(moment(self._chronicle, time))

    async def _facts(self, request: Request) -> Response:
        before = _number(request.query_params.get("before"))
        limit = _number(request.query_params.get("limit")) or FACTS_AT_MOST
        count = max(1, min(FACTS_AT_MOST, int(limit)))
        found = self._chronicle.facts_before(None if before is None else int(before), count)
        return _json({"facts": [fact.as_json() for fact in found]})

    async def _metrics(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": kind})

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        missing = list(self._missing())
        return PlainTextResponse("ready\n" if not missing else "".join(f"{what}\n" for what in missing),
                                 503 if missing else 200)  # fmt: skip


class _KnownNames(TrustedHostMiddleware):
    """Answers under known names only; health to anybody, for an orchestrator asks by address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in HEALTH:
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _Headers:
    """The same headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def _page_files() -> dict[str, bytes]:
    """The files of the page by name, read once: what is not here is not served."""
    folder = resources.files("trainmover.monitor") / "page"
    found = {}
    for entry in (*folder.iterdir(), *((folder / "vendor").iterdir())):
        if entry.is_file() and "." + entry.name.rpartition(".")[2] in TYPES:
            found[entry.name] = entry.read_bytes()
    return found


def _json(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content, ensure_ascii=False), media_type="application/json")


def _number(text: str | None) -> float | None:
    """A finite number in a query; None: there is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e12 else None
