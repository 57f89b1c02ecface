"""A validating admission webhook: it rejects invalid parameters in claims, templates and classes when a user writes them.

The message is the same as the message that a pod's event would otherwise contain later. Source: admission.k8s.io/v1 AdmissionReview;
KEP-4381, "Custom parameters".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..base.files import read_file
from ..base.http_server.server import HttpServer, Limits, Request, Response
from ..base.json_types import ReadOnlyJSON
from ..base.settings import WebhookSettings
from ..base.text import join_first
from ..base.threads import in_own_thread
from ..driver.checks import ParameterChecks
from ..driver.config.objects import KINDS, ConfigReader, config_faults
from ..errors import DriverFailedError, SettingsError, clip, describe
from ..resourceapi.encoded import config_entries, from_json
from .lifecycle import stop_with_timeout

log = logging.getLogger(__name__)
PATH = "/validate"
_MIB = 1024 * 1024
_FINISH = 1.0  # seconds for reviews that arrive while the webhook stops
LIMITS = Limits(
    head_timeout=10,
    body_timeout=10,
    idle_timeout=90,
    send_timeout=10,
    connections=128,
    requests=64,
    head_bytes=16 * 1024,
    head_lines=64,
    # An API server reads objects up to 3 MiB; a review contains the new and the old object.
    body_bytes=6 * _MIB,
    buffered_bytes=16 * _MIB,
    socket_bytes=128 * 1024,
)
_OBJECT = dict[str, msgspec.Raw]
_TIMEOUT = 10.0  # seconds that an API server waits, if its request does not contain a timeout
_SHARE = 0.8  # the part of the timeout that a review may take; the rest is for the network
_LARGE = 64 * 1024  # bytes: a review up to this size is decoded on the event loop, in about 3 ms at most
_LARGE_AT_ONCE = 2
_SENTENCES = 20  # maximum number of sentences in a rejection
_LONGEST = 8 * 1024  # maximum bytes of a rejection


class Webhook:
    """Serves reviews over HTTPS. Creating one has no effects; :meth:`running` starts it.

    It does not use the API server, so it needs no service account, no permissions and no Lease. Any number of replicas may run.
    """

    def __init__(
        self, readers: Sequence[ConfigReader], settings: WebhookSettings, check_interval: float = 10.0
    ) -> None:
        """``check_interval`` is the number of seconds between two checks of the certificate's files."""
        self.readers = readers
        self._check_interval = check_interval
        self.settings = settings
        self.certificate = Certificate(settings.tls_cert_file, settings.tls_private_key_file)
        self.url = ""
        self.checks = ParameterChecks()
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Webhook]:
        """Serves while the context is open. Raises :class:`SettingsError` if the certificate, key or address cannot be used."""
        self.settings.check()
        server = HttpServer(self._handle, self.settings.address, self.certificate.load(), LIMITS)
        try:
            self.url = await server.start()
        except (OSError, UnicodeError) as e:  # UnicodeError if the host name is invalid
            raise SettingsError(f"--address (WEBHOOK_ADDRESS) {self.settings.address}: {describe(e)}") from None
        log.info(
            "serving admission reviews at %s%s", self.url, PATH, extra={"drivers": [r.driver for r in self.readers]}
        )
        async with contextlib.AsyncExitStack() as stack:
            stop_with_timeout(stack, "closing the webhook", lambda: server.close(_FINISH))
            async with asyncio.TaskGroup() as tasks:
                reload = tasks.create_task(self.certificate.keep(server, self._check_interval), name="certificate")
                try:
                    yield self
                finally:
                    reload.cancel()

    async def _handle(self, request: Request) -> Response:
        match request.path:
            case "/healthz" | "/readyz":
                # If no thread is free any more, only a restart helps: the kubelet restarts the container.
                stuck = self.checks.stuck()
                return Response(503 if stuck else 200, f"{stuck or 'ok'}\n".encode(), "text/plain")
            case "/validate" if request.method == "POST":
                return await self._reviewed(request.body, _timeout(request.query.get("timeout", "")))
        return Response(404, f"POST {PATH}, /healthz or /readyz\n".encode(), "text/plain")

    async def _reviewed(self, body: bytes, timeout: float) -> Response:
        try:
            if len(body) <= _LARGE:
                response = await self.review(_read(body), timeout * _SHARE)
            else:
                response = await self._review_large(body, timeout * _SHARE)
        except DriverFailedError as e:  # there is no result: the failurePolicy decides what the API server does
            log.error("cannot review an object: %s", e.message, extra={"error_code": e.code})
            return Response(500, f"{e.message}\n".encode(), "text/plain")
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as e:
            text = f"not an AdmissionReview of admission.k8s.io/v1: {describe(e)}\n"
            return Response(400, text.encode(), "text/plain")
        return Response(200, msgspec.json.encode(response))

    async def _review_large(self, body: bytes, seconds: float) -> dict[str, Any]:
        """Does the same as :meth:`review` for large reviews, of which only a few run at once.

        Decoded parameters need 20 times the memory of their JSON. Other reviews do not wait for large ones.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            async with asyncio.timeout_at(until):
                await self._large.acquire()
        except TimeoutError:
            raise DriverFailedError(f"other large reviews took {seconds:g} s: the API server may try again") from None
        try:
            return await self.review(await in_own_thread(_read, body), until - loop.time())
        finally:
            self._large.release()

    async def review(self, review: object, seconds: float = _TIMEOUT) -> dict[str, Any]:
        """Returns the response to an AdmissionReview.

        Raises ``ValueError`` if it is not an AdmissionReview, and :class:`DriverFailedError` if the driver's checks do not end in time.
        """
        if not isinstance(review, Mapping) or not isinstance(request := review.get("request"), Mapping):
            raise ValueError("it has no request")
        if review.get("apiVersion") != "admission.k8s.io/v1" or not isinstance(uid := request.get("uid"), str):
            raise ValueError(f"its apiVersion is {review.get('apiVersion')!r}, or it has no uid")
        found = await self.checks(lambda: self._faults(request), seconds)
        response: dict[str, Any] = {"uid": uid, "allowed": not found}
        if found:
            name = f"{request.get('namespace', '')}/{request.get('name', '')}"
            log.info("rejected an object: %s", found[0], extra={"kind": request["object"]["kind"], "object": name})
            message = join_first(found, "; ", _SENTENCES, _LONGEST)
            response["status"] = {
                "metadata": {},
                "status": "Failure",
                "reason": "Invalid",
                "code": 422,
                "message": message,
            }
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _faults(self, request: ReadOnlyJSON) -> list[str]:
        """Returns the faults of an object; for an update, only the faults of entries that it adds or changes.

        Otherwise, an invalid object that is older than the webhook could not lose its finalizers.
        """
        obj, old = request.get("object"), request.get("oldObject")
        if not isinstance(obj, Mapping) or str(obj.get("kind")) not in KINDS:
            return []
        before = old if isinstance(old, Mapping) else None
        return list(map(clip, config_faults(obj, self.readers, before)))


def _timeout(text: str) -> float:
    """Returns the seconds of ``timeout=5s``, a parameter that an API server adds to the address."""
    found = re.fullmatch(r"([0-9]{1,3})s", text)
    return float(found[1]) if found else _TIMEOUT


def _read(body: bytes) -> object:
    """Decodes an AdmissionReview, but of its objects only the parts with parameters: whole objects would need too much memory."""
    review = from_json(body, _OBJECT)
    request = from_json(review.get("request", b"null"), _OBJECT | None)
    if request is None:
        return None
    read = {
        name: _with_parameters(raw) if name in {"object", "oldObject"} else from_json(raw)
        for name, raw in request.items()
        if name in {"uid", "namespace", "name", "object", "oldObject"}
    }
    return {"apiVersion": from_json(review.get("apiVersion", b"null")), "request": read}


def _with_parameters(raw: msgspec.Raw, depth: int = 4) -> object:
    """Decodes an object's kind and its configuration entries, with the fields that contain them; None if ``raw`` is not an object."""
    try:
        fields = from_json(raw, _OBJECT)
    except msgspec.ValidationError:
        return None
    out: dict[str, object] = {"kind": from_json(fields["kind"])} if "kind" in fields else {}
    if "config" in fields:
        out["config"] = config_entries(fields["config"])
    if depth:
        out |= {k: _with_parameters(fields[k], depth - 1) for k in ("spec", "devices") if k in fields}
    return out


class Certificate:
    """A certificate and its key, in files that another component renews, such as cert-manager."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._seen: object = None
        self.fault = ""

    def load(self) -> ssl.SSLContext:
        """Reads both files. Raises :class:`SettingsError` if they are not a certificate and its key."""
        seen = self._stamp()
        # A new context each time, so that a failure does not change the context in use.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password, OpenSSL would ask for it at the terminal.
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ssl.SSLError, ValueError):
            raise SettingsError(*self._faults()) from None
        self._seen = seen
        return context

    def _faults(self) -> list[str]:
        """Returns why each of the two files cannot be used; if both can be used, that they do not belong together."""
        out = []
        files = (
            ("--tls-cert-file (TLS_CERT_FILE)", self._cert, b"BEGIN CERTIFICATE", "certificate"),
            ("--tls-private-key-file (TLS_PRIVATE_KEY_FILE)", self._key, b"PRIVATE KEY", "private key"),
        )
        for flag, path, mark, kind in files:
            try:
                found = read_file(path)
                if mark not in found:
                    out.append(f"{flag} {path} has no {kind} in PEM form")
                elif b"ENCRYPTED" in found:
                    out.append(f"{flag} {path} is encrypted: use a key without a pass phrase (openssl pkey -in FILE)")
            except OSError as e:
                out.append(
                    f"{flag} {path} cannot be read: {e.strerror or e}; mount a Secret of type kubernetes.io/tls there"
                )
        both = f"--tls-cert-file (TLS_CERT_FILE) {self._cert} with --tls-private-key-file (TLS_PRIVATE_KEY_FILE) {self._key}"
        return out or [f"{both}: the key does not belong to the certificate, or one of the files is damaged"]

    def _stamp(self) -> object:
        try:
            return [(s.st_ino, s.st_mtime_ns, s.st_size) for s in (self._cert.stat(), self._key.stat())]
        except OSError as e:
            return str(e)

    async def keep(self, server: HttpServer, every: float) -> None:
        """Checks the files every ``every`` seconds, and lets the server use each new certificate. Never returns.

        Files that cannot be used, for example because only one of them is written yet, are logged once and read again later.
        """
        while True:
            await asyncio.sleep(every)
            if self._stamp() == self._seen:
                continue
            try:
                server.tls = self.load()
            except SettingsError as e:
                if self.fault != e.message:
                    log.error("cannot load the new certificate, so the old one stays in use: %s", e.message)
                self.fault = e.message
            else:
                self.fault = ""
                log.info("loaded the new certificate")
