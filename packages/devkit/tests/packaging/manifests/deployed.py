"""Applies the manifests of a driver to a local cluster, creates tokens for its pods, and records their requests."""

from __future__ import annotations

from collections.abc import Iterator

from dra_devkit.localcluster.apiserver.access import AccessRequest
from dra_devkit.localcluster.apiserver.auth import User
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import ApiConfig, Resource, Tls
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.resource import PODS

Grant = tuple[str, str, str]
"""Verb, group, and resource with its subresource."""


class Deployed:
    """Rendered manifests of a driver on a local cluster. Use :meth:`on`.

    Attributes:
        requests: the user, the request and whether it was allowed, for each authorization decision in order.
    """

    def __init__(self, cluster: LocalCluster, objects: list[JSON]) -> None:
        self.cluster, self.objects = cluster, objects
        self.requests: list[tuple[str, AccessRequest, bool]] = []
        cluster.api.access.audit = self._record

    def _record(self, user: User, request: AccessRequest, allowed: bool) -> None:
        self.requests.append((user.name, request, allowed))

    @classmethod
    async def on(cls, cluster: LocalCluster, objects: list[JSON]) -> Deployed:
        found = cls(cluster, objects)
        order = ("Namespace", "ServiceAccount")
        await cluster.apply(*sorted(found.objects, key=lambda o: o["kind"] not in order))
        return found

    def _workload(self, kind: str) -> JSON:
        (found,) = (o for o in self.objects if o["kind"] == kind)
        return found

    def account(self, kind: str) -> tuple[str, str]:
        """Returns namespace and name of the service account of the DaemonSet or Deployment."""
        found = self._workload(kind)
        return found["metadata"]["namespace"], found["spec"]["template"]["spec"]["serviceAccountName"]

    def user(self, kind: str) -> str:
        return "system:serviceaccount:{}:{}".format(*self.account(kind))

    async def pod(self, kind: str, node: str = "") -> JSON:
        """Waits until a pod of the DaemonSet or Deployment is bound to the node, or to any node, and returns it."""
        namespace, labels = (w := self._workload(kind))["metadata"]["namespace"], w["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{k}={v}" for k, v in labels.items())

        async def bound() -> JSON | None:
            pods = await self.cluster.client.list(PODS, namespace, labels=selector)
            at = [p for p in pods["items"] if p["spec"].get("nodeName", "") == (node or p["spec"].get("nodeName", "-"))]
            return at[0] if at else None

        found: JSON = await self.cluster.wait(f"a pod of the {kind}", bound)
        return found

    async def token(self, kind: str, pod: JSON | None) -> str:
        return await token_of(self.cluster, self._workload(kind), pod)

    async def config(self, kind: str, pod: JSON | None) -> ApiConfig:
        return await config_of(self.cluster, self._workload(kind), pod)

    # --- granted and used permissions -------------------------------------------------------------

    def granted(self, kind: str) -> set[Grant]:
        namespace, account = self.account(kind)
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        roles = {(o["kind"], o["metadata"]["name"]): o for o in self.objects if o["kind"] in {"Role", "ClusterRole"}}
        out: set[Grant] = set()
        for binding in self.objects:
            if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"} and subject in binding["subjects"]:
                out |= set(_grants(roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]))
        return out

    def used(self, kind: str) -> set[Grant]:
        return {(q.verb, q.group, q.full) for user, q, allowed in self.requests if allowed and user == self.user(kind)}

    def refused(self, kind: str) -> set[Grant]:
        """Returns the requests that were not allowed."""
        return {(q.verb, q.group, q.full) for user, q, ok in self.requests if not ok and user == self.user(kind)}


def _grants(role: JSON) -> Iterator[Grant]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield verb, group, resource


async def token_of(cluster: LocalCluster, workload: JSON, pod: JSON | None) -> str:
    """Returns a token of a workload's service account. It is bound to a pod, like a token that the kubelet requests, or to none."""
    namespace, account = workload["metadata"]["namespace"], workload["spec"]["template"]["spec"]["serviceAccountName"]
    spec: JSON = {}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    accounts = Resource("", "v1", "serviceaccounts", namespaced=True)
    response = await cluster.client.call("POST", accounts.path(namespace, account, "token"), {"spec": spec})
    return str(response["status"]["token"])


async def config_of(cluster: LocalCluster, workload: JSON, pod: JSON | None) -> ApiConfig:
    """Returns the configuration with which a pod of the workload connects to the API server."""
    return ApiConfig(cluster.api.url, Tls(), Token(await token_of(cluster, workload, pod)))
