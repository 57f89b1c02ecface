"""The types of NetworkPolicy, for :mod:`.server_types`. The schemas of `shared/schemas` do not contain networking.k8s.io.

Source: the Go types of networking.k8s.io/v1. The mark ``go`` stands beside a field as in ``types.json``. The numbers of the protobuf
fields come from the published messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_AT = "networking.v1."
_TEXT: Schema = {"type": "string", "go": ""}
_PROTOCOL: Schema = {"type": "string", "go": "p", "enum": ["SCTP", "TCP", "UDP"]}
_PORT_NUMBER: Schema = {"type": "integer", "format": "int32", "go": "p"}


def _struct(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def _reference(name: str, go: str) -> Schema:
    return {"$ref": name, "go": go}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "go": "", "x-kubernetes-list-type": "atomic"}


def _list_of(name: str) -> Schema:
    return _list({"$ref": f"{_AT}{name}"})


def kinds_and_types() -> tuple[dict[str, str], dict[str, Schema]]:
    """Returns the kind and the types that are added."""
    selector = "apis.meta.v1.LabelSelector"
    cidr = {**_TEXT, "default": "", "go": "a"}
    types = {
        "NetworkPolicy": _struct(
            apiVersion=_TEXT,
            kind=_TEXT,
            metadata={**_reference("apis.meta.v1.ObjectMeta", ""), "default": {}},
            spec={**_reference(f"{_AT}NetworkPolicySpec", ""), "default": {}},
        ),
        "NetworkPolicySpec": _struct(
            podSelector={**_reference(selector, "a"), "default": {}},
            ingress=_list_of("NetworkPolicyIngressRule"),
            egress=_list_of("NetworkPolicyEgressRule"),
            policyTypes=_list({"type": "string", "default": "", "enum": ["Egress", "Ingress"]}),
        ),
        "NetworkPolicyIngressRule": _struct(
            ports=_list_of("NetworkPolicyPort"), **{"from": _list_of("NetworkPolicyPeer")}
        ),
        "NetworkPolicyEgressRule": _struct(ports=_list_of("NetworkPolicyPort"), to=_list_of("NetworkPolicyPeer")),
        "NetworkPolicyPort": _struct(
            protocol=_PROTOCOL, port=_reference("util.intstr.IntOrString", "p"), endPort=_PORT_NUMBER
        ),
        "NetworkPolicyPeer": _struct(
            podSelector=_reference(selector, "p"),
            namespaceSelector=_reference(selector, "p"),
            ipBlock=_reference(f"{_AT}IPBlock", "p"),
        ),
        "IPBlock": _struct("cidr", cidr=cidr, **{"except": _list({"type": "string", "default": ""})}),
    }
    return {"networking.k8s.io/v1/NetworkPolicy": f"{_AT}NetworkPolicy"}, {f"{_AT}{k}": v for k, v in types.items()}
