"""Runs probes and lifecycle hooks of a real container: a command in the container, or a network call to the pod.
Source: kubernetes, pkg/probe and pkg/kubelet/lifecycle. The texts of the results are the same as in Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import shlex
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from dra_devkit.localcluster.listeners import stop_listening
from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .interface import ContainerError, ExecSession, HandlerAction, Outcome, ProbeResult

Exec = Callable[[Sequence[str]], Awaitable[ExecSession]]
Connect = Callable[[int, float], Awaitable[socket.socket]]  # port, seconds
_TEXT = 10 * 1024  # bytes of output that an event may contain
_REDIRECTS = 10
_MOVED = {301, 302, 303, 307, 308}
_AGENT = "kube-probe/1.36"


async def perform(action: HandlerAction, run: Exec, connect: Connect, address: str) -> Outcome:
    """Runs a probe or hook within its timeout.

    Args:
        run: starts a command in the container. Raises :class:`ContainerError` if the command cannot be started.
        connect: connects to a port of the pod. Raises ``OSError`` if the connection fails.
        address: the pod's address, for headers and messages.
    """
    for kind in ("exec", "httpGet", "tcpSocket", "grpc"):
        if (spec := action.handler.get(kind)) is not None:
            break
    else:
        return Outcome(ProbeResult.ERROR, "missing probe handler")
    if (host := str(spec.get("host") or "")) and host != address:
        text = f"host {host}: the local cluster reaches a pod at its own address only, so leave `host` out"
        return Outcome(ProbeResult.ERROR, text)
    match kind:
        case "exec":
            return await _exec(spec, action.timeout, run)
        case "httpGet":
            return await _http(spec, action.timeout, connect, address)
        case "tcpSocket":
            return await _tcp(spec, action.timeout, connect, address)
    return await _grpc(spec, action.timeout, connect, address)


async def _exec(spec: ReadOnlyJSON, timeout: float, run: Exec) -> Outcome:
    command = [str(c) for c in spec.get("command") or []]
    session: ExecSession | None = None
    try:
        async with asyncio.timeout(timeout):
            session = await run(command)
            output = b""
            while (found := await session.read()) is not None:
                output = (output + found[1])[:_TEXT]
            code = await session.wait()
    except TimeoutError:
        return Outcome(ProbeResult.FAIL, f'command "{shlex.join(command)}" timed out')
    except (ContainerError, KeyError) as e:
        return Outcome(ProbeResult.ERROR, f"rpc error: code = Unknown desc = {e}")
    finally:
        if session is not None:
            await session.close()
    return Outcome(ProbeResult.FAIL if code else ProbeResult.PASS, output.decode(errors="replace"))


async def _tcp(spec: ReadOnlyJSON, timeout: float, connect: Connect, address: str) -> Outcome:
    port = int(spec["port"])
    try:
        (await connect(port, timeout)).close()
    except OSError as e:
        return Outcome(ProbeResult.FAIL, f"dial tcp {address}:{port}: {_words(e)}")
    return Outcome(ProbeResult.PASS)


# --- http -------------------------------------------------------------------------------------------------


async def _http(spec: ReadOnlyJSON, timeout: float, connect: Connect, address: str) -> Outcome:
    path = str(spec.get("path") or "/")
    scheme = str(spec.get("scheme") or "HTTP").lower()
    url = f"{scheme}://{address}:{int(spec['port'])}{path if path.startswith('/') else '/' + path}"
    headers = {str(h["name"]): str(h.get("value") or "") for h in spec.get("httpHeaders") or []}
    first_url = url
    open_now: list[socket.socket] = []
    try:
        async with asyncio.timeout(timeout):
            for _ in range(_REDIRECTS + 1):
                parts = urlsplit(url)
                if parts.hostname != address or parts.scheme not in {"http", "https"}:
                    # Kubernetes counts a redirect to another host as success, with a warning.
                    return Outcome(ProbeResult.PASS)
                port = parts.port or (443 if parts.scheme == "https" else 80)
                open_now[:] = [await connect(port, timeout)]
                code, location = await asyncio.to_thread(_get, open_now[0], url, headers)
                if code not in _MOVED or not location:
                    break
                url = urljoin(url, location)
            else:
                return Outcome(ProbeResult.FAIL, f'Get "{first_url}": stopped after {_REDIRECTS} redirects')
    except TimeoutError:
        text = f'Get "{first_url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
        return Outcome(ProbeResult.FAIL, text)
    except OSError as e:
        return Outcome(ProbeResult.FAIL, f'Get "{first_url}": dial tcp {urlsplit(url).netloc}: {_words(e)}')
    except (http.client.HTTPException, ValueError) as e:
        return Outcome(ProbeResult.FAIL, f'Get "{first_url}": malformed HTTP response: {type(e).__name__} {e}'.strip())
    finally:
        for found in open_now:  # closing a connection ends the thread that still waits for its response
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()
    if 200 <= code < 400:
        return Outcome(ProbeResult.PASS)
    return Outcome(ProbeResult.FAIL, f"HTTP probe failed with statuscode: {code}")


def _get(connection: socket.socket, url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Sends a GET request. Returns the status code and the ``Location`` header.

    Raises:
        OSError, HTTPException, ValueError: as ``http.client`` raises them.
    """
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname or "", parts.port)
    if parts.scheme == "https":
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # like the kubelet
        connection = trusting.wrap_socket(connection, server_hostname=parts.hostname)
    client.sock = connection
    names = {k.lower() for k in headers}
    client.putrequest(
        "GET",
        parts.path + (f"?{parts.query}" if parts.query else "") or "/",
        skip_host="host" in names,
        skip_accept_encoding=True,
    )
    usual = {"User-Agent": _AGENT, "Accept": "*/*", "Connection": "close"}
    for name, value in {**{k: v for k, v in usual.items() if k.lower() not in names}, **headers}.items():
        client.putheader(name, value)
    client.endheaders()
    response = client.getresponse()
    found = response.status, response.getheader("Location", "") or ""
    response.close()
    client.close()
    return found


# --- grpc -------------------------------------------------------------------------------------------------


async def _grpc(spec: ReadOnlyJSON, timeout: float, connect: Connect, address: str) -> Outcome:
    """Calls the gRPC health service of the pod.

    The gRPC library opens its connections itself, outside the pod's network. So it connects to a local socket, and this
    function copies the data between that socket and a connection inside the pod's network.
    """
    port, name = int(spec["port"]), str(spec.get("service") or "")
    place = f"{address}:{port}"
    try:
        async with asyncio.timeout(timeout):
            inner = await connect(port, timeout)
    except (TimeoutError, OSError) as e:
        words = "context deadline exceeded" if isinstance(e, TimeoutError) else f"dial tcp {place}: {_words(e)}"
        return Outcome(ProbeResult.FAIL, f'timeout: failed to connect service "{place}" within {timeout:g}s: {words}')
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        path = str(Path(folder) / "s")
        relays: list[asyncio.Task[None]] = []
        clients: list[asyncio.StreamWriter] = []

        def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.append(writer)
            relays.append(asyncio.create_task(_relay(reader, writer, inner)))

        server = await asyncio.start_unix_server(relayed, path)
        try:
            return await _check(path, place, name, timeout)
        finally:
            await stop_listening(server)
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)
            for client in clients:
                client.close()  # a relay that was cancelled before it began has not closed its client
            inner.close()


async def _check(path: str, place: str, name: str, timeout: float) -> Outcome:
    options = [("grpc.default_authority", place), ("grpc.primary_user_agent", _AGENT)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            response = await check(health_pb2.HealthCheckRequest(service=name), timeout=timeout)
        except grpc.aio.AioRpcError as e:
            match e.code():
                case grpc.StatusCode.UNIMPLEMENTED:
                    why = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    why = f"timeout: health rpc did not complete within {timeout:g}s"
                case code:
                    why = f"error: health rpc probe failed: rpc error: code = {code.name}"
            return Outcome(ProbeResult.FAIL, f"{why}: {e.details()}" if e.details() else why)
    if response.status == health_pb2.HealthCheckResponse.SERVING:
        return Outcome(ProbeResult.PASS)
    word = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return Outcome(ProbeResult.FAIL, f'service unhealthy (responded with "{word}")')


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: socket.socket) -> None:
    inner.setblocking(False)
    inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, inner_writer))
            tasks.create_task(pump(inner_reader, writer))
    finally:
        inner_writer.close()
        writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies data until either side ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _words(error: OSError) -> str:
    """Formats an error as Go does."""
    if isinstance(error, TimeoutError):
        return "i/o timeout"
    return f"connect: {(error.strerror or str(error)).lower()}"
