"""The local API server without a cluster, and an HTTP client that shows status, headers and body of each response."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON


class ApiResponse:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["message"])

    @property
    def causes(self) -> list[tuple[str, str]]:
        return [(c["reason"], c["field"]) for c in self.json["details"]["causes"]]


class ApiCaller:
    """Sends requests as any HTTP client does. Requests contain the token unless ``headers`` overrides it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> ApiResponse:
        sent_headers = {"Authorization": f"Bearer {self.server.token}"} | dict(headers or {})
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        if data is not None and "Content-Type" not in sent_headers:
            sent_headers["Content-Type"] = "application/json"
        target = f"{path}?{urlencode(query)}" if query else path

        def send() -> ApiResponse:
            connection = http.client.HTTPConnection(urlsplit(self.server.url).netloc, timeout=60)
            with contextlib.closing(connection):
                connection.request(method, target, data, {k: v for k, v in sent_headers.items() if v})
                got = connection.getresponse()
                return ApiResponse(got.status, dict(got.getheaders()), got.read())

        return await asyncio.to_thread(send)

    async def make(self, path: str, obj: JSON, **query: str) -> JSON:
        response = await self("POST", path, obj, **query)
        assert response.status == 201, response.body
        return dict(response.json)


FEATURES = Features.of(runtime_config={"api/all": True})


@contextlib.asynccontextmanager
async def running_api_server(features: Features = FEATURES) -> AsyncIterator[ApiCaller]:
    server = ApiServer(features=features)
    await server.start()
    try:
        yield ApiCaller(server)
    finally:
        await server.close()
