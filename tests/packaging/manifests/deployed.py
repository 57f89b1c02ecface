"""Manifests of a driver on a local cluster: tokens of its pods, and an audit of what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_kubeletplugin.kube import ApiConfig, Resource, Tls
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.localcluster.apiserver.access import AccessRequest
from dra_kubeletplugin.localcluster.apiserver.auth import User
from dra_kubeletplugin.localcluster.cluster import LocalCluster

JSON = dict[str, Any]
Grant = tuple[str, str, str]
"""Verb, group, and resource with its subresource."""


class Deployed:
    """What was rendered for a driver, on a local cluster. Use :meth:`on`.

    Attributes:
        asked: what each user was decided on, in order, with whether it was allowed.
    """

    def __init__(self, cluster: LocalCluster, objects: list[JSON]) -> None:
        self.cluster, self.objects = cluster, objects
        self.asked: list[tuple[str, AccessRequest, bool]] = []
        cluster.api.access.audit = self._told

    def _told(self, user: User, question: AccessRequest, allowed: bool) -> None:
        self.asked.append((user.name, question, allowed))

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
        """Namespace and name of the service account of the DaemonSet or Deployment."""
        found = self._workload(kind)
        return found["metadata"]["namespace"], found["spec"]["template"]["spec"]["serviceAccountName"]

    def user(self, kind: str) -> str:
        return "system:serviceaccount:{}:{}".format(*self.account(kind))

    async def pod(self, kind: str, node: str = "") -> JSON:
        """A pod of the DaemonSet or Deployment, on one node or any, as soon as it is bound there."""
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

    # --- what is granted, and what was used -------------------------------------------------------

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
        return {(q.verb, q.group, q.full) for user, q, allowed in self.asked if allowed and user == self.user(kind)}

    def refused(self, kind: str) -> set[Grant]:
        """What was asked for and not granted."""
        return {(q.verb, q.group, q.full) for user, q, ok in self.asked if not ok and user == self.user(kind)}


def _grants(role: JSON) -> Iterator[Grant]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield verb, group, resource


async def token_of(cluster: LocalCluster, workload: JSON, pod: JSON | None) -> str:
    """A token of a workload's service account, bound to a pod as the kubelet asks for it, or to nothing."""
    namespace, account = workload["metadata"]["namespace"], workload["spec"]["template"]["spec"]["serviceAccountName"]
    spec: JSON = {}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    accounts = Resource("", "v1", "serviceaccounts", namespaced=True)
    answer = await cluster.client.call("POST", accounts.path(namespace, account, "token"), {"spec": spec})
    return str(answer["status"]["token"])


async def config_of(cluster: LocalCluster, workload: JSON, pod: JSON | None) -> ApiConfig:
    """The API server as a pod of the workload reaches it."""
    return ApiConfig(cluster.api.url, Tls(), Token(await token_of(cluster, workload, pod)))
