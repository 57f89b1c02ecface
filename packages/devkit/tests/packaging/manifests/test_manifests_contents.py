"""Tests the contents of the manifests: minimal privileges of each workload, and settings that operators rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import ControllerSettings, Settings, WebhookSettings
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    DRIVERS,
    container,
    one,
    plain,
    values_of,
    with_features,
)

EVERYTHING = plain(with_features(*(f for f in ALL if f != "privileged")))
NOTHING = plain(with_features())
SLICES = {"list", "watch", "create", "update", "delete"}


def options_of(kind: type[Settings]) -> set[str]:
    """Returns the environment variables of a role."""
    return {f.metadata["env"] for f in kind.options()}


def rules(manifests: list[JSON], account: str) -> dict[tuple[str, str, str], set[str]]:
    """Maps (scope, group, resource) to the verbs that are granted to a service account."""
    roles = {(m["kind"], m["metadata"]["name"]): m["rules"] for m in manifests if m["kind"] in {"Role", "ClusterRole"}}
    out: dict[tuple[str, str, str], set[str]] = {}
    for binding in manifests:
        if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"} and binding["subjects"][0]["name"] == account:
            scope = "cluster" if binding["kind"] == "ClusterRoleBinding" else binding["metadata"]["namespace"]
            for rule in roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]), []):
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        out.setdefault((scope, group, resource), set()).update(rule["verbs"])
    return out


def test_the_plugin_has_only_the_permissions_that_it_uses() -> None:
    least = {
        ("cluster", "resource.k8s.io", "resourceclaims"): {"get"},
        ("cluster", "", "nodes"): {"get"},
        ("cluster", "resource.k8s.io", "resourceslices"): SLICES,
    }
    assert rules(NOTHING, "npu") == least
    assert rules(EVERYTHING, "npu") == least | {
        ("cluster", "", "events"): {"create", "patch"},
        ("cluster", "resource.k8s.io", "resourceclaims/status"): {"patch"},
        ("cluster", "resource.k8s.io", "resourceclaims/driver"): {"associated-node:patch"},
    }


def test_the_controller_has_only_the_permissions_that_it_uses() -> None:
    assert rules(NOTHING, "npu-controller") == {}
    assert rules(EVERYTHING, "npu-controller") == {
        ("cluster", "resource.k8s.io", "resourceclaims"): {"get", "list", "watch"},
        ("cluster", "resource.k8s.io", "resourceclaims/status"): {"patch"},
        ("cluster", "resource.k8s.io", "resourceclaims/driver"): {"arbitrary-node:patch"},
        ("cluster", "resource.k8s.io", "resourceslices"): SLICES,
        ("npu-system", "coordination.k8s.io", "leases"): {"get", "create", "update"},
        ("npu-system", "", "configmaps"): {"list", "create", "delete"},
    }


WORKLOADS = pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("DaemonSet", "npu"),
        ("DaemonSet", "npu-supervisor"),
        ("Deployment", "npu-controller"),
        ("Deployment", "npu-webhook"),
    ],
)


@WORKLOADS
def test_a_container_has_minimal_privileges(kind: str, name: str) -> None:
    spec = one(EVERYTHING, kind, name)["spec"]["template"]["spec"]
    context = container(one(EVERYTHING, kind, name))["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "privileged" not in context
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_the_supervisor_of_mps_daemons_shares_the_process_ids_of_the_node() -> None:
    manifests = plain(values_of("nvidia"))
    pods = {name: one(manifests, "DaemonSet", name)["spec"]["template"]["spec"] for name in ("nvidia", "supervisor")}
    assert (pods["nvidia"].get("hostPID"), pods["supervisor"]["hostPID"]) == (None, True)


def test_a_privileged_container_has_no_contradicting_settings() -> None:
    context = container(one(plain(values_of("pci")), "DaemonSet"))["securityContext"]
    assert context == {"runAsUser": 0, "privileged": True, "readOnlyRootFilesystem": True}


@pytest.mark.parametrize(("name", "mounted"), [("npu-controller", []), ("npu-webhook", ["tls"])])
def test_the_controller_and_the_webhook_mount_no_host_paths(name: str, mounted: list[str]) -> None:
    deployment = one(EVERYTHING, "Deployment", name)
    spec = deployment["spec"]["template"]["spec"]
    assert [v["name"] for v in spec["volumes"] if "emptyDir" not in v] == mounted
    assert not [v for v in spec["volumes"] if "hostPath" in v]
    assert container(deployment)["securityContext"]["runAsNonRoot"] is True


def test_the_webhook_has_no_permissions_and_no_token() -> None:
    assert rules(EVERYTHING, "npu-webhook") == {}
    assert (
        one(EVERYTHING, "Deployment", "npu-webhook")["spec"]["template"]["spec"]["automountServiceAccountToken"]
        is False
    )


def test_the_webhook_configuration_leads_to_the_pods_of_the_webhook() -> None:
    service, deployment = one(EVERYTHING, "Service"), one(EVERYTHING, "Deployment", "npu-webhook")
    (hook,) = one(EVERYTHING, "ValidatingWebhookConfiguration")["webhooks"]
    reference = hook["clientConfig"]["service"]
    assert (reference["namespace"], reference["name"]) == (
        service["metadata"]["namespace"],
        service["metadata"]["name"],
    )
    (port,) = service["spec"]["ports"]
    assert reference["port"] == port["port"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    env = {e["name"]: e["value"] for e in container(deployment)["env"]}
    (named,) = container(deployment)["ports"]
    assert (port["targetPort"], f":{named['containerPort']}") == (named["name"], env["WEBHOOK_ADDRESS"])
    certificate = one(EVERYTHING, "Certificate")["spec"]
    assert certificate["dnsNames"] == [f"{reference['name']}.{reference['namespace']}.svc"]
    (tls,) = (v["secret"]["secretName"] for v in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in v)
    assert certificate["secretName"] == tls


@pytest.mark.parametrize("pod", ["controller", "webhook"])
def test_one_replica_of_a_deployment_stays_while_nodes_are_drained(pod: str) -> None:
    deployment = one(EVERYTHING, "Deployment", f"npu-{pod}")
    budget = one(EVERYTHING, "PodDisruptionBudget", f"npu-{pod}")["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"] == labels
    assert (budget["maxUnavailable"], deployment["spec"]["replicas"]) == (1, 2)


def test_every_object_has_the_name_of_the_driver_as_a_label() -> None:
    found = {
        f"{m['kind']} {m['metadata']['name']}": m["metadata"].get("labels", {}).get("app.kubernetes.io/name")
        for m in EVERYTHING
    }
    assert found and set(found.values()) == {"npu"}, found


def test_pods_of_one_component_are_selected_by_no_other_object() -> None:
    workloads = [m for m in EVERYTHING if m["kind"] in {"DaemonSet", "Deployment"}]
    selectors = [m["spec"]["selector"]["matchLabels"] for m in workloads]
    for workload in workloads:
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert [s for s in selectors if s.items() <= labels] == [workload["spec"]["selector"]["matchLabels"]]


def test_pods_run_on_linux_nodes_and_an_operator_can_narrow_them() -> None:
    narrowed = with_features(*ALL, pods={"all": {"nodeSelector": {"pool": "npu"}}})
    for workload in (m for m in plain(narrowed) if m["kind"] in {"DaemonSet", "Deployment"}):
        found = workload["spec"]["template"]["spec"]["nodeSelector"]
        assert found == {"kubernetes.io/os": "linux", "pool": "npu"}


def test_with_a_network_policy_other_pods_reach_only_named_ports() -> None:
    (policy,) = (m for m in EVERYTHING if m["kind"] == "NetworkPolicy")
    (rule,) = policy["spec"]["ingress"]
    named = {
        port["name"]
        for m in EVERYTHING
        if m["kind"] in {"DaemonSet", "Deployment"}
        for c in m["spec"]["template"]["spec"]["containers"]
        for port in c.get("ports", ())
    }
    assert {p["port"] for p in rule["ports"]} == named == {"http", "https"}


def test_the_plugin_mounts_only_the_host_paths_that_it_uses() -> None:
    spec = one(EVERYTHING, "DaemonSet", "npu")["spec"]["template"]["spec"]
    host = {v["hostPath"]["path"]: v["hostPath"]["type"] for v in spec["volumes"] if "hostPath" in v}
    assert host == {
        # Directory: the kubelet creates these folders. With another --root-dir, the pod fails with an error that shows it.
        "/var/lib/kubelet/plugins_registry": "Directory",
        "/var/lib/kubelet/plugins": "Directory",
        "/var/lib/kubelet/pod-resources": "Directory",
        "/var/run/cdi": "DirectoryOrCreate",
        "/dev": "Directory",
    }
    mounts = {m["name"]: m for m in container(one(EVERYTHING, "DaemonSet", "npu"))["volumeMounts"]}
    assert mounts["dev"]["readOnly"] is mounts["pod-resources"]["readOnly"] is True
    assert not [
        m for m in mounts.values() if "mountPropagation" in m
    ]  # the plugin shares sockets and files, not mounts


def test_the_supervisor_serves_the_socket_of_the_plugin_and_updates_do_not_replace_it() -> None:
    supervisor = one(EVERYTHING, "DaemonSet", "npu-supervisor")
    assert supervisor["spec"]["updateStrategy"] == {"type": "OnDelete"}
    spec = supervisor["spec"]["template"]["spec"]
    plugin = one(EVERYTHING, "DaemonSet", "npu")["spec"]["template"]["spec"]
    same = ("tolerations", "priorityClassName", "affinity", "serviceAccountName")
    assert [spec[k] for k in same] == [plugin[k] for k in same] and spec["automountServiceAccountToken"] is False
    (supervised,), (driver,) = spec["containers"], plugin["containers"]
    assert supervised["image"] == driver["image"] and supervised["securityContext"] == driver["securityContext"]
    env = {e["name"]: e.get("value") for e in supervised["env"]}
    command, socket = supervised["args"]
    for name, value in env.items():
        socket = socket.replace(f"$({name})", value)
    of_plugin = {e["name"]: e.get("value") for e in driver["env"]}
    settings = Settings(driver_name=of_plugin["DRIVER_NAME"], kubelet_root=Path(of_plugin["KUBELET_ROOT"]))
    assert (command, Path(socket)) == ("supervisor", settings.plugin_dir / of_plugin["PROCESS_SUPERVISOR"])
    mounts = {m["mountPath"] for m in supervised["volumeMounts"]}
    assert mounts == {"/var/lib/kubelet/plugins", "/tmp"}  # noqa: S108 - in a container
    without = {e["name"] for e in container(one(NOTHING, "DaemonSet"))["env"]}
    assert "PROCESS_SUPERVISOR" not in without


def test_pods_of_the_plugin_tolerate_all_taints_and_are_not_preempted() -> None:
    spec = one(EVERYTHING, "DaemonSet", "npu")["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert one(EVERYTHING, "DaemonSet", "npu")["spec"]["updateStrategy"] == {
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}
    }


@pytest.mark.parametrize(
    ("kind", "name", "known", "needed"),
    [
        ("DaemonSet", "npu", options_of(Settings), {"NODE_NAME", "POD_UID", "DRIVER_NAME"}),
        (
            "Deployment",
            "npu-controller",
            options_of(ControllerSettings),
            {"POD_NAMESPACE", "POD_NAME", "DRIVER_NAME"},
        ),
        (
            "Deployment",
            "npu-webhook",
            options_of(WebhookSettings),
            {"DRIVER_NAME", "TLS_CERT_FILE", "TLS_PRIVATE_KEY_FILE"},
        ),
    ],
)
def test_every_variable_is_an_option_of_its_role(kind: str, name: str, known: set[str], needed: set[str]) -> None:
    variables = {e["name"] for e in container(one(EVERYTHING, kind, name))["env"]}
    assert needed <= variables <= known


def test_only_pods_that_request_a_token_have_one() -> None:
    accounts = [m for m in EVERYTHING if m["kind"] == "ServiceAccount"]
    assert [a["automountServiceAccountToken"] for a in accounts] == [False, False, False]
    for kind, name in (("DaemonSet", "npu"), ("Deployment", "npu-controller")):
        assert one(EVERYTHING, kind, name)["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


@pytest.mark.parametrize("name", DRIVERS)
def test_manifests_take_the_driver_name_from_the_values_only(name: str) -> None:
    driver_values = values_of(name)
    text = str(plain(driver_values | {"driverName": "other.example.com", "deviceClasses": {}, "options": {}}))
    assert driver_values["driverName"] not in text.replace(driver_values["image"], "")
