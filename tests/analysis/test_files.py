"""Files of `kubectl get`: a kind that the files do not contain is unknown, not absent."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.analysis import ReasonKind, explain
from dra_kubeletplugin.analysis.files import snapshot_of

JSON = dict[str, Any]


def objects(*more: JSON) -> list[JSON]:
    entry = {"name": "d", "resourceClaimTemplateName": "t"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [entry]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9"}}}
    return [pod, node, *more]


def template(name: str) -> JSON:
    meta = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": {}},
    }  # fmt: skip


def test_without_any_template_the_existence_of_the_pods_template_is_unknown() -> None:
    found = explain(snapshot_of(objects()), "p")
    assert found.kinds == {ReasonKind.CLAIM_NOT_CREATED}
    assert "the files contain no resourceclaimtemplates" in found.gaps[0].why


def test_with_other_templates_the_pods_template_does_not_exist() -> None:
    found = explain(snapshot_of(objects(template("other"))), "p")
    assert found.kinds == {ReasonKind.TEMPLATE_MISSING}
    assert not found.gaps


def test_without_a_pod_that_needs_a_template_there_is_no_gap() -> None:
    pod_and_node = objects()
    pod_and_node[0]["status"] = {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "p-d"}]}
    assert not snapshot_of(pod_and_node).gaps
