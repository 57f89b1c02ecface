"""NetworkPolicies are validated and defaulted as on Kubernetes, and stored with a warning that nothing enforces them."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.api_server import ApiCaller

POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
BLOCK = {"cidr": "10.0.0.0/8"}


def policy(**spec: Any) -> JSON:
    return {"metadata": {"name": "npu"}, "spec": spec}


def with_peer(peer: JSON) -> JSON:
    return {"ingress": [{"from": [peer]}]}


def with_port(**port: Any) -> JSON:
    return {"egress": [{"ports": [port]}]}


async def test_a_policy_is_stored_with_its_defaults_and_a_warning(curl: ApiCaller) -> None:
    rules = {"ingress": [{"ports": [{"port": "http"}]}], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}
    created = await curl("POST", POLICIES, policy(**rules))
    assert created.status == 201
    warning = "the local cluster has no pod network: it stores NetworkPolicies but does not enforce them"
    assert warning in created.headers["Warning"]
    stored = (await curl("GET", f"{POLICIES}/npu")).json
    assert stored["spec"] == {
        "podSelector": {},
        "ingress": [{"ports": [{"port": "http", "protocol": "TCP"}]}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}],
        "policyTypes": ["Ingress", "Egress"],
    }
    assert stored["metadata"]["generation"] == 1
    table = (await curl("GET", POLICIES, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})).json
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Pod-Selector", "Age"]
    assert table["rows"][0]["cells"][:2] == ["npu", "<none>"]


@pytest.mark.parametrize(
    "spec",
    [
        {"policyTypes": ["Egress"]},
        with_peer({"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}}),
        with_peer({"ipBlock": {"cidr": "10.1.0.0/8", "except": ["10.2.0.0/16"]}}),
        with_peer({"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}),
        with_port(port=6443, endPort=6443),
        with_port(),
    ],
)
async def test_these_policies_are_valid(spec: JSON, curl: ApiCaller) -> None:
    created = await curl("POST", POLICIES, policy(**spec))
    assert created.status == 201, created.message


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"podSelector": {"matchLabels": {"a b": "c"}}}, "spec.podSelector.matchLabels: Invalid value"),
        (
            {"policyTypes": ["Both"]},
            'spec.policyTypes[0]: Unsupported value: "Both": supported values: "Egress", "Ingress"',
        ),
        ({"policyTypes": ["Ingress"] * 3}, "may not specify more than two policyTypes"),
        (with_port(port=0), "spec.egress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        (with_port(port="a_b"), "spec.egress[0].ports[0].port: Invalid value"),
        (with_port(port=1, protocol="ICMP"), 'spec.egress[0].ports[0].protocol: Unsupported value: "ICMP"'),
        (with_port(port=2, endPort=1), "endPort: Invalid value: 1: must be greater than or equal to `port`"),
        (with_port(port=2, endPort=65536), "endPort: Invalid value: 65536: must be between 1 and 65535, inclusive"),
        (
            with_port(port="http", endPort=1),
            "endPort: Invalid value: 1: may not be specified when `port` is non-numeric",
        ),
        (with_port(endPort=1), "endPort: Invalid value: 1: may not be specified when `port` is not specified"),
        (with_peer({}), "spec.ingress[0].from[0]: Required value: must specify a peer"),
        (with_peer({"ipBlock": BLOCK, "podSelector": {}}), "Forbidden: may not specify both ipBlock and another peer"),
        (with_peer({"ipBlock": {"cidr": ""}}), "spec.ingress[0].from[0].ipBlock.cidr: Required value"),
        (with_peer({"ipBlock": {"cidr": "10.0.0.0"}}), 'ipBlock.cidr: Invalid value: "10.0.0.0": must be a valid CIDR'),
        (with_peer({"ipBlock": BLOCK | {"except": ["10.0.0.0/33"]}}), "ipBlock.except[0]: Invalid value"),
        (with_peer({"ipBlock": BLOCK | {"except": ["10.0.0.0/8"]}}), "must be a strict subset of `cidr`"),
        (with_peer({"ipBlock": BLOCK | {"except": ["2001:db8::/32"]}}), "must be a strict subset of `cidr`"),
    ],
)
async def test_these_policies_are_refused(spec: JSON, error: str, curl: ApiCaller) -> None:
    refused = await curl("POST", POLICIES, policy(**spec))
    assert (refused.status, error in refused.message) == (422, True), refused.message
