"""Admission webhooks: sends an AdmissionReview over HTTPS and applies the response (admission.k8s.io/v1).

Source: Kubernetes' documentation, "Dynamic Admission Control".
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, printable
from dra_kubeletplugin.kube.http1 import MalformedResponseError
from dra_kubeletplugin.kube.tls import Tls
from dra_kubeletplugin.kube.transport import Transport

from ....scheduling.cel.expressions import Expression
from ....scheduling.cel.values import CelError
from .. import patch
from ..access import Access
from ..status_errors import StatusError, bad_request
from ..storage import Storage
from ..validation.policies import compile_conditions
from .attributes import Attributes, View
from .conditions import holds, values
from .matching import Matcher

MUTATING = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
VALIDATING = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_NO_SERVICE = (
    "the local cluster has no service network, so its API server cannot reach service {}/{}: use clientConfig.url for a webhook on "
    "this machine"
)
_BAD_REQUEST = 400
_OK = 200
_SERVER_ERROR = 500
_ERROR_TEXT_LIMIT = 2048  # maximum bytes of a webhook's error text in the response to the client


ApplyPatch = Callable[[View, Any], Attributes]
"""Converts an object that a webhook patched, in the webhook's version, to new attributes. Raises :class:`StatusError`."""


class CallError(Exception):
    """A webhook returned no usable response. Its failure policy decides the result."""


class _ResponseStatus(msgspec.Struct):
    code: int | None = None
    message: str | None = None
    reason: str | None = None
    details: JSON | None = None


class _WebhookResponse(msgspec.Struct, rename="camel"):
    uid: str = ""
    allowed: bool = False
    status: _ResponseStatus | None = None
    warnings: list[str] | None = None
    patch: bytes | None = None
    patch_type: str | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    response: _WebhookResponse | None = None


class Webhooks:
    def __init__(self, storage: Storage, access: Access, matcher: Matcher) -> None:
        self.storage, self.access, self.matcher = storage, access, matcher

    @property
    def any_mutating(self) -> bool:
        return bool(self.storage.list(MUTATING))

    @property
    def any_validating(self) -> bool:
        return bool(self.storage.list(VALIDATING))

    async def mutate(self, attributes: Attributes, apply_patch: ApplyPatch, warnings: list[str]) -> Attributes:
        """Calls the mutating webhooks that match, and returns the changed attributes. Appends their warnings to ``warnings``.

        A webhook with ``reinvocationPolicy: IfNeeded`` is called a second time if a later webhook changed the object.

        Raises:
            StatusError: A webhook rejected the request, or its call failed and its failure policy is ``Fail``.
        """
        hooks = list(self._hooks(MUTATING))
        called: list[JSON] = []
        repeated: list[JSON] = []
        for hook in hooks:
            before = attributes.object
            attributes = await self._mutate_with(hook, attributes, apply_patch, warnings)
            if attributes.object != before:
                repeated = [h for h in called if h.get("reinvocationPolicy") == "IfNeeded"]
            called.append(hook)
        for hook in repeated:
            attributes = await self._mutate_with(hook, attributes, apply_patch, warnings)
        return attributes

    async def _mutate_with(
        self, hook: JSON, attributes: Attributes, apply_patch: ApplyPatch, warnings: list[str]
    ) -> Attributes:
        view = self._view(hook, attributes)
        if view is None:
            return attributes
        try:
            response = await self._call(hook, view)
            warnings += response.warnings or ()
            _check(hook, response)
            operations = _operations(response)
            if operations is None or view.object is None:
                return attributes
            try:
                return apply_patch(view, patch.json_patch(view.object, operations))
            except patch.PatchError as e:
                raise CallError(f"cannot apply the patch in its response: {e}") from None
        except CallError as e:
            _failed(hook, e)
            return attributes

    async def validate(self, attributes: Attributes, warnings: list[str]) -> None:
        """Calls all matching webhooks at the same time. Raises :class:`StatusError` for the first webhook, in order, that rejects."""
        found = [(h, view) for h in self._hooks(VALIDATING) if (view := self._view(h, attributes))]
        if not found:
            return
        responses = await asyncio.gather(*(self._call(h, v) for h, v in found), return_exceptions=True)
        for (hook, _), response in zip(found, responses, strict=True):
            if isinstance(response, CallError):
                _failed(hook, response)
            elif isinstance(response, BaseException):
                raise response
            else:
                warnings += response.warnings or ()
                _check(hook, response)

    def _hooks(self, kind: str) -> Iterator[JSON]:
        for configuration in sorted(self.storage.list(kind), key=lambda c: str(c["metadata"]["name"])):
            yield from configuration.get("webhooks") or ()

    def _view(self, hook: JSON, attributes: Attributes) -> View | None:
        """Returns the request in the version that the webhook's rules match; None if it does not apply. Raises :class:`StatusError`."""
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

    async def _call(self, hook: JSON, view: View) -> _WebhookResponse:
        if view.attributes.dry and hook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            raise bad_request(f'admission webhook "{hook["name"]}" does not support dry run')
        uid = str(uuid.uuid4())
        request = {"uid": uid, **view.request(), "object": view.object, "oldObject": view.old}
        head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
        body = await _post(hook, json.dumps({**head, "request": request}).encode())
        return _read(body, uid)


@functools.lru_cache(maxsize=256)
def _conditions(text: str) -> Mapping[str, Expression]:
    return compile_conditions(json.loads(text))


def _failed(hook: JSON, why: CallError) -> None:
    """Raises :class:`StatusError` unless the failure policy is ``Ignore``."""
    if hook.get("failurePolicy") != "Ignore":
        message = f'Internal error occurred: failed calling webhook "{hook["name"]}": failed to call webhook: {why}'
        raise StatusError(500, "InternalError", message, {"causes": [{"message": str(why)}]})


def _check(hook: JSON, response: _WebhookResponse) -> None:
    if response.allowed:
        return
    status = response.status or _ResponseStatus()
    denied = f'admission webhook "{hook["name"]}" denied the request'
    explanation = status.message or status.reason
    raise StatusError(
        max(status.code or 0, _BAD_REQUEST),
        status.reason or "",
        f"{denied}: {explanation}" if explanation else f"{denied} without explanation",
        status.details,
    )


def _read(body: bytes, uid: str) -> _WebhookResponse:
    """Parses and checks the AdmissionReview that a webhook returned. Raises :class:`CallError`."""
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        raise CallError(f"the response cannot be decoded: {e}") from None
    if review.api_version != "admission.k8s.io/v1":
        raise CallError("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    if review.response is None:
        raise CallError("webhook response was absent")
    if review.response.uid != uid:
        raise CallError(f'expected response.uid="{uid}", got "{review.response.uid}"')
    return review.response


def _operations(response: _WebhookResponse) -> Any:
    """Returns the JSON patch in a response; None if it has none. Raises :class:`CallError`."""
    if not response.patch:
        if response.patch_type:
            raise CallError("webhook returned response.patchType but not response.patch")
        return None
    if response.patch_type != "JSONPatch":
        raise CallError(f'webhook returned invalid response.patchType of "{response.patch_type or ""}"')
    try:
        return msgspec.json.decode(response.patch)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        raise CallError(f"response.patch is not a JSON patch: {e}") from None


# --- HTTPS ------------------------------------------------------------------------------------------


class _WebhookTls(Tls):
    """Trusts the certificates in a configuration's ``caBundle``, or the system's certificates if ``caBundle`` is empty."""

    def __init__(self, bundle: str) -> None:
        super().__init__()
        self._bundle = bundle

    def context(self) -> ssl.SSLContext:
        # VERIFY_X509_STRICT is not set, because Go, in which API servers are written, does not require the strict checks
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._bundle:
            tls.load_verify_locations(cadata=base64.b64decode(self._bundle).decode())
        else:
            tls.load_default_certs()
        return tls


async def _post(hook: JSON, body: bytes) -> bytes:
    """Posts a review to the webhook's URL and returns the response's body. Raises :class:`CallError`."""
    config, seconds = hook["clientConfig"], float(hook.get("timeoutSeconds") or 10)
    if service := config.get("service"):
        raise CallError(_NO_SERVICE.format(service.get("namespace"), service.get("name")))
    url = str(config["url"])
    parts = urlsplit(url)
    transport = Transport(f"https://{parts.netloc}", _WebhookTls(str(config.get("caBundle") or "")), connections=1)
    headers = {"Host": parts.netloc, "Accept": "application/json", "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(seconds):
            response = await transport.request("POST", f"{parts.path or '/'}?timeout={seconds:g}s", headers, body)
    except TimeoutError:
        raise CallError(f'Post "{url}": context deadline exceeded: no response within {seconds:g} s') from None
    except (OSError, MalformedResponseError, ApiError, ValueError) as e:
        raise CallError(f'Post "{url}": {e}') from None
    finally:
        await transport.close()
    if response.status != _OK:
        if response.status < _SERVER_ERROR:
            raise CallError(f"an error on the server: webhook returned status {response.status}")
        text = printable(bytes(response.body[:_ERROR_TEXT_LIMIT]).decode(errors="replace")).strip() or "unknown"
        raise CallError(f"an error on the server ({json.dumps(text)}) has prevented the request from succeeding")
    return bytes(response.body)
