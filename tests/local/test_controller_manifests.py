"""The controller's manifests: least permissions in both forms of authorisation, and overlays that build."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
JSON = dict[str, Any]


def manifests(folder: str) -> list[JSON]:
    out: list[JSON] = []
    for path in sorted((ROOT / folder).glob("*.yaml")):
        out += [d for d in yaml.safe_load_all(path.read_text()) if d and d["kind"] != "Kustomization"]
    return out


def rules(docs: list[JSON], account: str) -> dict[tuple[str, str, str], set[str]]:
    """(scope, group, resource) → verbs that a service account has."""
    roles = {(d["kind"], d["metadata"]["name"]): d["rules"] for d in docs if d["kind"] in {"Role", "ClusterRole"}}
    out: dict[tuple[str, str, str], set[str]] = {}
    for binding in docs:
        if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"} and binding["subjects"][0]["name"] == account:
            scope = "cluster" if binding["kind"] == "ClusterRoleBinding" else binding["metadata"]["namespace"]
            for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        out.setdefault((scope, group, resource), set()).update(rule["verbs"])
    return out


def test_the_controller_may_do_what_it_does_and_no_more() -> None:
    assert rules(manifests("deploy/controller"), "dra-controller") == {
        ("cluster", "resource.k8s.io", "resourceclaims"): {"get", "list", "watch"},
        ("cluster", "resource.k8s.io", "resourceclaims/status"): {"patch"},
        ("cluster", "resource.k8s.io", "resourceclaims/driver"): {"arbitrary-node:patch"},
        ("cluster", "resource.k8s.io", "resourceslices"): {"list", "watch", "create", "update", "delete"},
        ("dra-system", "coordination.k8s.io", "leases"): {"get", "create", "update"},
        ("dra-system", "", "configmaps"): {"list", "create", "delete"},
    }


def test_the_plugin_may_tell_the_status_of_its_own_driver_on_its_own_node() -> None:
    docs = manifests("deploy/base")
    found = rules(docs, "dra-driver")
    assert found["cluster", "resource.k8s.io", "resourceclaims/driver"] == {"associated-node:patch"}
    assert found["cluster", "resource.k8s.io", "resourceclaims/status"] == {"patch"}
    (role,) = (d for d in docs if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "dra-driver-status")
    assert role["rules"][0]["resourceNames"] == ["DRIVER_NAME"]


def test_the_deployment_needs_nothing_of_the_host() -> None:
    (deployment,) = (d for d in manifests("deploy/controller") if d["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [v["name"] for v in pod["volumes"] if "emptyDir" not in v] == []
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["args"][0] == "controller"
    assert {e["name"] for e in container["env"]} >= {"POD_NAMESPACE", "POD_NAME", "DRIVER_NAME"}


@pytest.mark.kubectl
@pytest.mark.parametrize("driver", sorted(p.parents[1].name for p in ROOT.glob("drivers/*/deploy/kustomization.yaml")))
def test_every_overlay_builds_and_names_its_driver_everywhere(driver: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", f"drivers/{driver}/deploy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = [d for d in yaml.safe_load_all(done.stdout) if d]
    assert "value: DRIVER_NAME" not in done.stdout and "- DRIVER_NAME" not in done.stdout
    for doc in built:
        if doc["metadata"]["name"].endswith("-status") and doc["kind"] == "ClusterRole":
            assert doc["rules"][0]["resourceNames"] != ["DRIVER_NAME"]
        if doc["kind"] == "ValidatingAdmissionPolicy":
            variables = {v["name"]: v["expression"] for v in doc["spec"]["variables"]}
            assert variables["driver"] != '"DRIVER_NAME"'
