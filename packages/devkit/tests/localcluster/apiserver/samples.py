"""A valid object of each served kind, and the path of its collection."""

from __future__ import annotations

import copy

from dra_devkit.localcluster.apiserver.kinds import ServedKind
from dra_kubeletplugin.base.json_types import JSON

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SELECTOR = {"matchLabels": {"a": "b"}}
POD = {
    "containers": [
        {
            "name": "c",
            "image": "i",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1", "x.example.com/gpu": "1"}, "claims": [{"name": "d"}]},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
    ],
    "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "resourceClaims": [{"name": "d", "resourceClaimName": "x"}],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}],
    "schedulingGates": [{"name": "example.com/gate"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t", "labelSelector": SELECTOR}]
        },
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
}
RULES = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
REFERENCE = {"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]}
POOL = {"name": "n", "generation": 1, "resourceSliceCount": 1}
HOOKS = {
    "webhooks": [
        {
            "name": "w.example.com",
            "clientConfig": {"url": "https://x"},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        }
    ]
}
VERSIONS = [
    {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "S", "type": "date", "jsonPath": ".spec.size"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}},
            }
        },
    }
]
ACCESS_REVIEW = {
    "spec": {
        "user": "u",
        "groups": ["g"],
        "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"},
    }
}
CLAIM = {
    "devices": {
        "requests": [
            {"name": "r", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k", "operator": "Exists"}]}},
            {"name": "l", "firstAvailable": [{"name": "a", "deviceClassName": "c", "count": 2}]},
        ],
        "constraints": [{"requests": ["r"], "matchAttribute": "d.example.com/i"}],
        "config": [{"opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}],
    }
}
SAMPLES: dict[str, JSON] = {
    "Pod": {"spec": POD, "status": {"phase": "Running"}},
    "Node": {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "1"}}},
    "ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "ZA=="}},
    "Secret": {"stringData": {"a": "b"}, "data": {"c": "ZA=="}},
    "Service": {"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}},
    "Event": {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r", "message": "m"},
    "ResourceQuota": {"spec": {"hard": {"pods": "1000", "x.deviceclass.resource.k8s.io/devices": "1k"}, "scopes": ["BestEffort"]}},
    "Deployment": {"spec": {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}},
    "ReplicaSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}},
    "DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "Job": {"spec": {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}},
    "Lease": {"spec": {"holderIdentity": "h", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "Role": RULES, "ClusterRole": RULES, "RoleBinding": REFERENCE, "ClusterRoleBinding": REFERENCE,
    "ValidatingAdmissionPolicy": {
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
            "validations": [{"expression": "true"}],
        }
    },
    "ValidatingAdmissionPolicyBinding": {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
    "ValidatingWebhookConfiguration": HOOKS, "MutatingWebhookConfiguration": HOOKS,
    "PriorityClass": {"value": 5},
    "SelfSubjectAccessReview": ACCESS_REVIEW, "SubjectAccessReview": ACCESS_REVIEW, "LocalSubjectAccessReview": ACCESS_REVIEW,
    "NetworkPolicy": {"spec": {"podSelector": SELECTOR, "ingress": [{"ports": [{"port": "http"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "CustomResourceDefinition": {
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "samples", "kind": "Sample"}, "versions": VERSIONS}
    },
    "ResourceSlice": {"spec": {"driver": "d.example.com", "nodeName": "n", "pool": POOL, "devices": [{"name": "d0", "attributes": {"i": {"int": 1}}, "capacity": {"m": {"value": "1Gi"}}}]}},
    "ResourceClaim": {"spec": CLAIM},
    "ResourceClaimTemplate": {"spec": {"spec": CLAIM}},
    "DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "device.driver == \"d\""}}], "extendedResourceName": "example.com/gpu"}},
    "SelfSubjectRulesReview": {"spec": {"namespace": "default"}},
    "DeviceTaintRule": {"spec": {"taint": {"key": "k", "effect": "NoExecute"}, "deviceSelector": {"driver": "d"}}},
    "ResourcePoolStatusRequest": {"spec": {"driver": "d.example.com"}},
}  # fmt: skip


def collection(kind: ServedKind, version: str) -> str:
    head = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    return f"{head}/namespaces/default/{kind.plural}" if kind.namespaced else f"{head}/{kind.plural}"


def sample(kind: ServedKind, name: str) -> JSON:
    if kind.kind == "CustomResourceDefinition":
        name = "samples.example.com"
    return {"metadata": {"name": name}, **copy.deepcopy(SAMPLES.get(kind.kind, {}))}
