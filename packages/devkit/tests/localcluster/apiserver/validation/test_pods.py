"""Pods that the API server rejects at creation. Source: the validation package of the core API group."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.validation.pod_defaults import pod_defaults
from dra_devkit.localcluster.apiserver.validation.pods import validate_pod
from dra_kubeletplugin.base.json_types import JSON

HOST = "kubernetes.io/hostname"
TERM = "requiredDuringSchedulingIgnoredDuringExecution"


def validation_errors(container: JSON | None = None, **spec: Any) -> list[str]:
    containers = [{"name": "main", "image": "busybox", **(container or {})}]
    body = {"restartPolicy": "Never", "dnsPolicy": "ClusterFirst", "containers": containers, **spec}
    pod_defaults(body)
    return [str(f) for f in validate_pod({"metadata": {"name": "p"}, "spec": body})]


def volume(**source: Any) -> JSON:
    return {"volumes": [{"name": "v", **source}]}


def spread(**constraint: Any) -> JSON:
    return {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", **constraint}]}  # fmt: skip


_CONTAINER = {"name": "c", "image": "i"}
_INVALID_PODS: list[tuple[JSON, str]] = [
    ({"containers": []}, "spec.containers: Required value"),
    ({"containers": [{"image": "i"}]}, "spec.containers[0].name: Required value"),
    ({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value"),
    ({"containers": [_CONTAINER] * 2}, "spec.containers[1].name: Duplicate value"),
    ({"restartPolicy": "Sometimes"}, "spec.restartPolicy: Unsupported value"),
    ({"resourceClaims": [{"name": "x"}]}, "spec.resourceClaims[0]: Invalid value"),
    ({"resourceClaims": [{"name": "x", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]}, "spec.resourceClaims[0]: Invalid value"),
    ({"containers": [{**_CONTAINER, "resources": {"claims": [{"name": "no"}]}}]}, "spec.containers[0].resources.claims[0]: Not found"),
    ({"containers": [{**_CONTAINER, "resources": {"requests": {"a.b/c": "1"}}}]}, "spec.containers[0].resources.limits: Required value"),
    ({"nodeSelector": {"a": "b c"}}, "spec.nodeSelector: Invalid value"),
    ({"tolerations": [{"operator": "Equal"}]}, "spec.tolerations[0].operator: Invalid value"),
    ({"affinity": {"podAntiAffinity": {TERM: [{}]}}}, f"spec.affinity.podAntiAffinity.{TERM}[0].topologyKey: Required value"),
    (volume(secret={}), "spec.volumes[0].secret.secretName: Required value"),
    (volume(configMap={}), "spec.volumes[0].configMap.name: Required value"),
    (volume(persistentVolumeClaim={}), "spec.volumes[0].persistentVolumeClaim.claimName: Required value"),
    (volume(hostPath={"path": "/a/../b"}), "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"),
    (volume(hostPath={"path": "/a", "type": "Odd"}), 'spec.volumes[0].hostPath.type: Unsupported value: "Odd"'),
    (volume(emptyDir={"sizeLimit": "-1"}), "spec.volumes[0].emptyDir.sizeLimit: Forbidden"),
    (volume(emptyDir={}, secret={"secretName": "s"}), "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}), "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes"),
    (spread(minDomains=0), "minDomains: Invalid value: 0: must be greater than zero"),
    (spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"), "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"),
    (spread(nodeTaintsPolicy="Odd"), 'nodeTaintsPolicy: Unsupported value: "Odd"'),
    (spread(matchLabelKeys=["a"]), "matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
    (spread(labelSelector={"matchExpressions": [{"key": "a", "operator": "Odd"}]}), "not a valid selector operator"),
    ({"topologySpreadConstraints": spread()["topologySpreadConstraints"] * 2}, "topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}: Duplicate value"),
    ({"affinity": {"podAffinity": {TERM: [{"topologyKey": HOST, "matchLabelKeys": ["a"]}]}}}, "matchLabelKeys: Forbidden"),
    ({"affinity": {"podAffinity": {TERM: [{"topologyKey": HOST, "namespaces": ["Bad_"]}]}}}, "namespaces[0]: Invalid value"),
    ({"hostPID": True, "shareProcessNamespace": True}, "ShareProcessNamespace and HostPID cannot both be enabled"),
    ({"hostUsers": False, "hostNetwork": True}, "spec.hostNetwork: Forbidden: when `hostUsers` is false"),
    ({"os": {"name": "plan9"}}, 'spec.os.name: Unsupported value: "plan9"'),
    ({"dnsPolicy": "None"}, "spec.dnsConfig.nameservers: Required value"),
    ({"ephemeralContainers": [{"name": "e", "image": "b"}]}, "spec.ephemeralContainers: Forbidden: cannot be set on create"),
    ({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}}]}, 'items[0].fieldRef.fieldPath: Unsupported value: "status.podIP": supported values: "metadata.annotations"'),
    ({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}}]}, "items[0].resourceFieldRef.containerName: Required value"),
    ({"securityContext": {"fsGroup": -1}}, "spec.securityContext.fsGroup: Invalid value: -1"),
    ({"securityContext": {"sysctls": [{"name": "a", "value": "1"}] * 2}}, "sysctls[1].name: Duplicate value"),
    ({"securityContext": {"seccompProfile": {"type": "Odd"}}}, 'seccompProfile.type: Unsupported value: "Odd"'),
    ({"resources": {"requests": {"example.com/gpu": "1"}}}, 'spec.resources.requests[example.com/gpu]: Unsupported value: "example.com/gpu"'),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "text"), _INVALID_PODS, ids=[t[:60] for _, t in _INVALID_PODS])
def test_an_invalid_pod_is_rejected(spec: JSON, text: str) -> None:
    errors = validation_errors(**spec)
    assert any(text in f for f in errors), errors


_PROBE = {"tcpSocket": {"port": 1}}
_INVALID_CONTAINERS: list[tuple[JSON, str]] = [
    ({"volumeDevices": [{"name": "none", "devicePath": "/x"}]}, 'volumeDevices[0].name: Not found: "none"'),
    ({"volumeDevices": [{"name": "v", "devicePath": "/x"}]}, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"),
    ({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../y"}]}, "subPath: Invalid value: \"../y\": must not contain '..'"),
    ({"volumeMounts": [{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]}, "mountPropagation: Forbidden"),
    ({"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"),
    ({"securityContext": {"procMount": "Unmasked"}}, "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`"),
    ({"securityContext": {"runAsUser": -5}}, "runAsUser: Invalid value: -5: must be between 0 and 2147483647, inclusive"),
    ({"ports": [{"containerPort": 80, "hostPort": 70000}]}, "hostPort: Invalid value: 70000"),
    ({"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]}, 'ports[1].hostPort: Duplicate value: "TCP//80"'),
    ({"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}, "resources: Forbidden: HugePages require cpu or memory"),
    ({"resources": {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}, "requests": {"hugepages-2Mi": "2Mi"}}}, "must be equal to hugepages-2Mi limit of 4Mi"),
    ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}}]}, 'fieldPath: Unsupported value: "spec.foo"'),
    ({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.foo"}}}]}, 'resource: Unsupported value: "limits.foo"'),
    ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "x"}}}]}, "configMapKeyRef.key: Required value"),
    ({"envFrom": [{"prefix": "a"}]}, "must specify one of: `configMapRef` or `secretRef`"),
    ({"readinessProbe": {}}, "readinessProbe: Required value: must specify a handler type"),
    ({"readinessProbe": {**_PROBE, "exec": {"command": ["a"]}}}, "readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"),
    ({"readinessProbe": {"httpGet": {"port": 0}}}, "readinessProbe.httpGet.port: Invalid value: 0"),
    ({"livenessProbe": {**_PROBE, "successThreshold": 2}}, "livenessProbe.successThreshold: Invalid value: 2: must be 1"),
    ({"lifecycle": {"preStop": {}}}, "lifecycle.preStop: Required value: must specify a handler type"),
    ({"terminationMessagePolicy": "Odd"}, 'terminationMessagePolicy: Unsupported value: "Odd"'),
    ({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}, "restartPolicy: Required value: must specify restartPolicy when restart rules are used"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "text"), _INVALID_CONTAINERS, ids=[t[:60] for _, t in _INVALID_CONTAINERS])
def test_an_invalid_container_is_rejected(container: JSON, text: str) -> None:
    errors = validation_errors(container, **volume(emptyDir={}))
    assert any(text in f for f in errors), errors


def test_the_ports_of_a_host_network_pod_are_host_ports() -> None:
    assert validation_errors({"ports": [{"containerPort": 80}]}, hostNetwork=True) == []
    [error] = validation_errors({"ports": [{"containerPort": 80, "hostPort": 81}]}, hostNetwork=True)
    assert "must match `hostPort` when `hostNetwork` is true" in error


def test_pod_level_requests_are_at_least_the_requests_of_the_containers() -> None:
    resources = {"resources": {"requests": {"cpu": "500m"}}}
    [error] = validation_errors(resources, resources={"requests": {"cpu": "100m"}})
    assert error == (
        'spec.resources.requests[cpu]: Invalid value: "100m": must be greater than or equal to aggregate container '
        "requests of 500m"
    )


def test_a_valid_pod_with_most_fields_is_accepted() -> None:
    mounts = {"volumeMounts": [{"name": "s", "mountPath": "/s", "subPath": "a/b"}, {"name": "h", "mountPath": "/h", "mountPropagation": "Bidirectional"}]}  # fmt: skip
    references = [{"fieldRef": {"fieldPath": "metadata.labels['a']"}}, {"resourceFieldRef": {"resource": "limits.cpu"}}]
    references += [{"secretKeyRef": {"name": "s", "key": "k"}}]
    container: JSON = {
        **mounts,
        "env": [{"name": f"E{i}", "valueFrom": r} for i, r in enumerate(references)],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "livenessProbe": {"httpGet": {"port": "web"}, "terminationGracePeriodSeconds": 5},
        "readinessProbe": {"grpc": {"port": 5}},
        "startupProbe": _PROBE,
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 80, "hostPort": 80, "protocol": "UDP"}],
        "resources": {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}},
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
    }
    projected = {"sources": [{"secret": {"name": "s"}}, {"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}  # fmt: skip
    volumes = [
        {"name": "s", "secret": {"secretName": "s", "items": [{"key": "a", "path": "b/c"}]}},
        {"name": "h", "hostPath": {"path": "/h", "type": "DirectoryOrCreate"}},
        {"name": "p", "projected": projected},
    ]
    errors = validation_errors(
        container,
        volumes=volumes,
        resources={"requests": {"cpu": "2"}},
        securityContext={"fsGroup": 5, "seccompProfile": {"type": "RuntimeDefault"}},
        os={"name": "linux"},
        **spread(
            minDomains=2, labelSelector={"matchLabels": {"a": "b"}}, matchLabelKeys=["c"], nodeTaintsPolicy="Honor"
        ),
    )
    assert errors == []
