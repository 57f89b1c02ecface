"""Service accounts of a local cluster that have only some permissions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAME = "reader"
"""The account, its roles and their bindings."""


async def token_with_rules(client: KubeClient, everywhere: Iterable[JSON], own: Iterable[JSON] = ()) -> str:
    """Creates an account with rules for the whole cluster, and with rules for its own namespace. Returns its token."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await client.call("POST", accounts, {"metadata": {"name": NAME}})
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": "default"}]
    for path, kind, rules in (("", "ClusterRole", everywhere), ("/namespaces/default", "Role", own)):
        role = {"metadata": {"name": NAME}, "rules": list(rules)}
        await client.call("POST", f"{RBAC}{path}/{kind.lower()}s", role)
        binding = {"metadata": {"name": NAME}, "roleRef": {"kind": kind, "name": NAME}, "subjects": subjects}
        await client.call("POST", f"{RBAC}{path}/{kind.lower()}bindings", binding)
    token: str = (await client.call("POST", f"{accounts}/{NAME}/token", {"spec": {}}))["status"]["token"]
    return token


def write_kubeconfig(cluster: LocalCluster, folder: Path, token: str) -> Path:
    """Writes a kubeconfig for the account with this token."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file
