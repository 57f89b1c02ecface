"""Webhooks: an AdmissionReview is sent over HTTPS, the answer allows, refuses or changes (admission.k8s.io/v1).

Source: Kubernetes' documentation, "Dynamic Admission Control".
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import json
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ....errors import ApiError, printable
from ....kube.http1 import MalformedResponseError
from ....kube.tls import Tls
from ....kube.transport import Transport
from ....scheduling.cel.values import CelError
from .. import patch
from ..access import Access
from ..status_errors import StatusError, bad_request
from ..storage import Storage
from ..validation.policies import compile_conditions
from .attributes import Attributes, View
from .conditions import Condition, holds, values
from .matching import Matcher

JSON = dict[str, Any]
MUTATING = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
VALIDATING = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_NO_SERVICE = (
    "the local cluster has no network of services: service {}/{} cannot be reached from its API server (a webhook on this machine "
    "is reached with clientConfig.url)"
)
_BAD_REQUEST = 400
_OK = 200
_SERVER_ERROR = 500
_SAID = 2048  # bytes of an error's text that a client reads


Mutate = Callable[[View, Any], Attributes]
"""Takes what a webhook made of the object, as it was shown, back into the request. Raises :class:`StatusError`."""


class CallError(Exception):
    """A webhook gave no answer that can be used: its failure policy decides."""


@dataclass(frozen=True)
class _Answer:
    allowed: bool
    status: JSON
    warnings: list[str]
    patch: Any


class Webhooks:
    def __init__(self, storage: Storage, access: Access, matcher: Matcher) -> None:
        self.storage, self.access, self.matcher = storage, access, matcher

    @property
    def any_mutating(self) -> bool:
        return bool(self.storage.list(MUTATING))

    @property
    def any_validating(self) -> bool:
        return bool(self.storage.list(VALIDATING))

    async def mutate(self, attributes: Attributes, changed: Mutate, warnings: list[str]) -> Attributes:
        """The request with what webhooks made of its object. Raises :class:`StatusError`."""
        hooks = list(self._hooks(MUTATING))
        asked: list[JSON] = []
        again: list[JSON] = []
        for hook in hooks:
            before = attributes.object
            attributes = await self._changed_by(hook, attributes, changed, warnings)
            if attributes.object != before:
                again = [h for h in asked if h.get("reinvocationPolicy") == "IfNeeded"]
            asked.append(hook)
        for hook in again:
            attributes = await self._changed_by(hook, attributes, changed, warnings)
        return attributes

    async def _changed_by(self, hook: JSON, attributes: Attributes, changed: Mutate, warnings: list[str]) -> Attributes:
        view = self._view(hook, attributes)
        if view is None:
            return attributes
        try:
            answer = await self._ask(hook, view)
            warnings += answer.warnings
            _check(hook, answer)
            if answer.patch is None or view.object is None:
                return attributes
            try:
                return changed(view, patch.json_patch(view.object, answer.patch))
            except patch.PatchError as e:
                raise CallError(f"the patch of its answer cannot be applied: {e}") from None
        except CallError as e:
            _failed(hook, e)
            return attributes

    async def validate(self, attributes: Attributes, warnings: list[str]) -> None:
        """Asks all at once; the first that refuses, in order, is told of. Raises :class:`StatusError`."""
        found = [(h, view) for h in self._hooks(VALIDATING) if (view := self._view(h, attributes))]
        if not found:
            return
        answers = await asyncio.gather(*(self._ask(h, v) for h, v in found), return_exceptions=True)
        for (hook, _), answer in zip(found, answers, strict=True):
            if isinstance(answer, CallError):
                _failed(hook, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                warnings += answer.warnings
                _check(hook, answer)

    def _hooks(self, kind: str) -> Iterator[JSON]:
        for configuration in sorted(self.storage.list(kind), key=lambda c: str(c["metadata"]["name"])):
            yield from configuration.get("webhooks") or ()

    def _view(self, hook: JSON, attributes: Attributes) -> View | None:
        """The request as the webhook wants it; None where it is not for it. Raises :class:`StatusError`."""
        view = self.matcher.view(hook, hook.get("rules") or (), attributes)
        if view is None or not hook.get("matchConditions"):
            return view
        known = values(view, self.matcher.namespace_of(attributes), self.access)
        try:
            conditions = _conditions(json.dumps(hook["matchConditions"]))
            return view if holds(conditions, known) else None
        except CelError as e:
            if hook.get("failurePolicy") != "Ignore":
                raise StatusError(403, "Forbidden", f'webhook "{hook["name"]}": {e}') from None
            return None

    async def _ask(self, hook: JSON, view: View) -> _Answer:
        if view.attributes.dry and hook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            raise bad_request(f'admission webhook "{hook["name"]}" does not support dry run')
        uid = str(uuid.uuid4())
        request = {"uid": uid, **view.request(), "object": view.object, "oldObject": view.old}
        head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
        body = await _post(hook, json.dumps({**head, "request": request}).encode())
        return _read(body, uid)


@functools.lru_cache(maxsize=256)
def _conditions(text: str) -> Sequence[Condition]:
    return [Condition(name, e) for name, e in compile_conditions(json.loads(text)).items()]


def _failed(hook: JSON, why: CallError) -> None:
    """Raises :class:`StatusError` where the failure policy says so."""
    if hook.get("failurePolicy") != "Ignore":
        message = f'Internal error occurred: failed calling webhook "{hook["name"]}": failed to call webhook: {why}'
        raise StatusError(500, "InternalError", message, {"causes": [{"message": str(why)}]})


def _check(hook: JSON, answer: _Answer) -> None:
    if answer.allowed:
        return
    status = answer.status
    given = status.get("code")
    code = given if isinstance(given, int) and given >= _BAD_REQUEST else _BAD_REQUEST
    denied = f'admission webhook "{hook["name"]}" denied the request'
    said = status.get("message") or status.get("reason")
    details = status.get("details")
    raise StatusError(
        code,
        str(status.get("reason") or ""),
        f"{denied}: {said}" if said else f"{denied} without explanation",
        dict(details) if isinstance(details, Mapping) else {},
    )


def _read(body: bytes, uid: str) -> _Answer:
    """Raises :class:`CallError`."""
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise CallError(f"the answer is no JSON: {e}") from None
    if not isinstance(review, dict) or review.get("apiVersion") != "admission.k8s.io/v1":
        raise CallError("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    response = review.get("response")
    if not isinstance(response, dict):
        raise CallError("webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f'expected response.uid="{uid}", got "{response.get("uid")}"')
    status, warnings = response.get("status"), response.get("warnings")
    return _Answer(
        response.get("allowed") is True,
        status if isinstance(status, dict) else {},
        [str(w) for w in warnings] if isinstance(warnings, list) else [],
        _patch_of(response),
    )


def _patch_of(response: JSON) -> Any:
    encoded = response.get("patch")
    if not encoded:
        if response.get("patchType"):
            raise CallError("webhook returned response.patchType but not response.patch")
        return None
    if response.get("patchType") != "JSONPatch":
        raise CallError(f'webhook returned invalid response.patchType of "{response.get("patchType") or ""}"')
    try:
        return json.loads(base64.b64decode(encoded, validate=True))
    except (ValueError, TypeError, binascii.Error, RecursionError) as e:
        raise CallError(f"response.patch is no JSON patch in base64: {e}") from None


# --- HTTPS ------------------------------------------------------------------------------------------


class _WebhookTls(Tls):
    """Believes those whom a configuration's ``caBundle`` names; the system's without one."""

    def __init__(self, bundle: str) -> None:
        super().__init__()
        self._bundle = bundle

    def context(self) -> ssl.SSLContext:
        tls = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # without VERIFY_X509_STRICT: an API server, in Go, does not ask for it
        if self._bundle:
            tls.load_verify_locations(cadata=base64.b64decode(self._bundle).decode())
        else:
            tls.load_default_certs()
        return tls


async def _post(hook: JSON, body: bytes) -> bytes:
    """Raises :class:`CallError`."""
    config, seconds = hook["clientConfig"], float(hook.get("timeoutSeconds") or 10)
    if service := config.get("service"):
        raise CallError(_NO_SERVICE.format(service.get("namespace"), service.get("name")))
    url = str(config["url"])
    parts = urlsplit(url)
    transport = Transport(f"https://{parts.netloc}", _WebhookTls(str(config.get("caBundle") or "")), connections=1)
    headers = {"Host": parts.netloc, "Accept": "application/json", "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(seconds):
            answer = await transport.request("POST", f"{parts.path or '/'}?timeout={seconds:g}s", headers, body)
    except TimeoutError:
        raise CallError(f'Post "{url}": context deadline exceeded: no answer within {seconds:g} s') from None
    except (OSError, MalformedResponseError, ApiError, ValueError) as e:
        raise CallError(f'Post "{url}": {e}') from None
    finally:
        await transport.close()
    if answer.status != _OK:
        if answer.status < _SERVER_ERROR:
            raise CallError(f"an error on the server: webhook answered with status {answer.status}")
        said = printable(bytes(answer.body[:_SAID]).decode(errors="replace")).strip() or "unknown"
        raise CallError(f"an error on the server ({json.dumps(said)}) has prevented the request from succeeding")
    return bytes(answer.body)
