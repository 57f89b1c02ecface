"""A running webhook, and reviews that a test posts to it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dra_devkit.localcluster.apiserver import certificate
from dra_kubeletplugin import Config
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import WebhookSettings
from dra_kubeletplugin.driver.config.objects import ConfigReader
from dra_kubeletplugin.plugin.webhook import Webhook

DRIVER = "gpu.example.com"


class GpuConfig(Config):
    KIND = "GpuConfig"
    API_VERSION = "gpu.example.com/v1"
    count: int = 1

    def check(self) -> None:
        if self.count > 8:
            raise RuntimeError("boom") if self.count > 100 else ValueError("count must be at most 8")


READER = ConfigReader(DRIVER, [GpuConfig])


def review(obj: object, old: object = None) -> JSON:
    kind = obj.get("kind", "") if isinstance(obj, dict) else ""
    request = {"uid": "u-1", "kind": {"kind": kind}, "operation": "UPDATE" if old else "CREATE", "object": obj}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request | ({"oldObject": old} if old else {}),
    }


@asynccontextmanager
async def running_webhook(
    folder: Path, check_interval: float = 10.0, readers: Sequence[ConfigReader] = (READER,)
) -> AsyncIterator[tuple[Webhook, Path]]:
    cert, key = certificate.write(folder, ["127.0.0.1"])
    settings = WebhookSettings(driver_name=DRIVER, address="127.0.0.1:0", tls_cert_file=cert, tls_private_key_file=key)
    async with Webhook(readers, settings, check_interval).running() as webhook:
        yield webhook, cert


async def post(url: str, ca: Path, body: bytes, path: str = "/validate") -> tuple[int, bytes]:
    host, port = url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(ca))
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    )
    writer.write(body)
    raw = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return int(raw.split()[1]), raw.partition(b"\r\n\r\n")[2]
