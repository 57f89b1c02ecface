"""The page of `dra dev`: what `dra top` shows, for whoever has a link that was printed to the terminal.

A link counts once: other users see the command lines of a browser. What it is exchanged for is kept by the browser's tab, and
sent by the page alone: no other page, nor a server on another port of this machine, gets it, as they would a cookie.
The cluster is followed while somebody looks, and for a while after: what is never looked at costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from ..analysis.top.live import LiveOverview
from ..base.http_server.server import PROBES, HttpServer, Request, Response
from ..errors import DraError, QuestionError, describe
from ..kube import ApiConfig, KubeClient
from ..plugin import usage_page
from ..resourceapi.usage.rows import Overview
from .explain_text import text as explanation
from .shell.style import Style

_STAYS = 30.0  # seconds without a look after which the cluster is followed no longer
_REASONS = 50  # pods whose reason is looked for
_LIMITS = replace(PROBES, send_timeout=30, connections=32)
_NO_KEY = "This page needs a link that `dra dev` printed and that was not used yet: `dra dev page` prints another."


class DevPage:
    """Serves until closed.

    ``address`` is HOST:PORT, the loopback and a free port by default.
    """

    def __init__(self, config: ApiConfig, address: str = "127.0.0.1:0") -> None:
        self._config = config
        self._http = HttpServer(self._answer, address, limits=_LIMITS)
        self._url = ""
        self._links: set[str] = set()
        self._tokens: set[str] = set()
        self._live: asyncio.Future[LiveOverview | None] | None = None
        self._following: set[asyncio.Task[None]] = set()  # one that ends may be beside the one that begins
        self._stay: asyncio.Timeout | None = None  # when it is followed no longer
        self._fault = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[DevPage]:
        """Raises ``OSError`` where the address cannot be had."""
        self._url = await self._http.start()
        try:
            yield self
        finally:
            await self._http.close()
            for task in self._following:
                task.cancel()
            await asyncio.gather(*self._following, return_exceptions=True)

    def link(self) -> str:
        """A new link. The key is behind the #, where it is sent to nobody and stands in no log."""
        key = secrets.token_urlsafe(24)
        self._links.add(key)
        return f"{self._url}/#key={key}"

    async def _answer(self, request: Request) -> Response:
        if refused := usage_page.refusal(request, writes=request.path == "/session"):
            return refused
        match request.path:
            case "/":
                return usage_page.page()
            case "/session":
                return self._session(request)
            case "/overview.json" | "/explanation" if not self._known(request):
                return usage_page.text(_NO_KEY, 401)
            case "/overview.json":
                live = await self._followed()
                return usage_page.rows(request, self._shown(live)) if live else usage_page.text(self._fault, 503)
            case "/explanation":
                live = await self._followed()
                return await _explained(live, request) if live else usage_page.text(self._fault, 503)
        return usage_page.text("/\n", 404)

    # --- who asks -------------------------------------------------------------------------------

    def _session(self, request: Request) -> Response:
        given = request.body.decode(errors="replace")
        found = next((k for k in self._links if hmac.compare_digest(k.encode(), given.encode())), None)
        if found is None:
            return usage_page.text(_NO_KEY, 401)
        self._links.discard(found)
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        answer = usage_page.text(f'{{"token": "{token}"}}')
        answer.content_type = "application/json"
        return answer

    def _known(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        told = given.encode(errors="replace")
        return kind == "Bearer" and any(hmac.compare_digest(t.encode(), told) for t in self._tokens)

    # --- what is shown --------------------------------------------------------------------------

    async def _followed(self) -> LiveOverview | None:
        """None where the API server does not answer; ``_fault`` says why."""
        loop = asyncio.get_running_loop()
        if self._stay is not None and self._stay.expired():  # it is ending
            self._live = self._stay = None
        elif self._stay is not None:
            self._stay.reschedule(loop.time() + _STAYS)
        if self._live is None:
            self._live = loop.create_future()
            task = asyncio.create_task(self._follow(self._live))
            self._following.add(task)
            task.add_done_callback(self._following.discard)
        return await asyncio.shield(self._live)

    async def _follow(self, ready: asyncio.Future[LiveOverview | None]) -> None:
        try:
            async with KubeClient(self._config) as client:
                live = LiveOverview(client)
                async with live.running():
                    ready.set_result(live)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_STAYS) as self._stay:
                            await asyncio.get_running_loop().create_future()  # until nobody has looked for so long
        except Exception as e:  # told to whoever looks; the next look tries again
            self._fault = str(e) if isinstance(e, DraError) else describe(e)
        finally:
            if self._live is ready:
                self._live = self._stay = None
            if not ready.done():
                ready.set_result(None)

    def _shown(self, live: LiveOverview) -> Overview:
        found = live.current()
        live.reasons.show(found.waiting[:_REASONS])
        return found


async def _explained(live: LiveOverview, request: Request) -> Response:
    namespace, name = request.query.get("namespace", ""), request.query.get("pod", "")
    pod = next((p for p in live.current().waiting if (p.namespace, p.name) == (namespace, name)), None)
    if pod is None:
        return usage_page.text(f"pod {namespace}/{name} does not wait for devices any more", 404)
    try:
        return usage_page.text("\n".join(explanation(await live.reasons.whole(pod), Style(coloured=False))))
    except QuestionError as e:
        return usage_page.text(str(e), 404)


__all__ = ["DevPage"]
