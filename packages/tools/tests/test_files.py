"""Files of `kubectl get`: a kind that the files do not contain is unknown, not absent."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_tools import ExplanationState, ReasonKind, explain
from dra_tools.files import snapshot_of
from packages.tools.tests.objects import CLASS, claim, dra, gpu, node, pod, pool


def objects(*more: JSON) -> list[JSON]:
    entry = {"name": "d", "resourceClaimTemplateName": "t"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [entry]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9"}}}
    other = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "other"}, "spec": {}}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    }
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    return [pod, node, other, device_class, slices, *more]


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
    assert [g.resource for g in found.gaps] == ["events"]


def test_without_a_pod_that_needs_a_template_there_is_no_gap() -> None:
    pod_and_node = objects()
    pod_and_node[0]["status"] = {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "p-d"}]}
    assert not snapshot_of(pod_and_node).gaps


# --- each kind that the files may lack ----------------------------------------------------------------

ADMIN = {"deviceClassName": "gpu", "adminAccess": True}
ADMIN_CLAIM = dra("ResourceClaim", "c", {"devices": {"requests": [{"name": "r", "exactly": ADMIN}]}})
CLUSTER = [
    CLASS, node("a"), pool("a", gpu("g0")), claim(), pod("c"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}},
]  # fmt: skip
DECIDES = ["Node", "DeviceClass", "ResourceSlice", "ResourceClaim"]


def without(kind: str) -> list[JSON]:
    return [o for o in CLUSTER if o["kind"] != kind]


def test_files_with_all_kinds_have_no_gap() -> None:
    found = explain(snapshot_of(CLUSTER), "p")
    assert (found.state, found.gaps) == (ExplanationState.FITS, ())


@pytest.mark.parametrize("kind", DECIDES)
def test_a_kind_that_the_files_lack_is_named_and_the_result_is_not_known(kind: str) -> None:
    found = explain(snapshot_of(without(kind)), "p")
    [gap] = found.gaps
    assert gap.why.startswith(f"the files contain no {kind.lower()}")
    assert (found.state, found.reasons) == (ExplanationState.UNKNOWN, ())


@pytest.mark.parametrize("kind", [*DECIDES, "Pod"])
@pytest.mark.parametrize("command", ["explain", "top"])
def test_no_command_says_success_for_files_that_lack_a_kind(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": without(kind)}))
    assert main([command, "-f", str(tmp_path / "all.json")]) == 3
    out = capsys.readouterr().out
    assert out.count(f"note: the files contain no {kind.lower()}") == 1
    assert "does not exist" not in out and "has no nodes" not in out


def test_namespaces_are_missed_only_if_their_labels_decide() -> None:
    without_namespace = [o for o in without("Namespace") if o["kind"] != "ResourceClaim"]
    assert snapshot_of([*without_namespace, claim()]).gaps == ()
    [gap] = snapshot_of([*without_namespace, ADMIN_CLAIM]).gaps
    assert gap.why == "the files contain no namespaces: labels of namespaces are not known"


def test_a_claim_in_files_without_pods_is_not_called_unused() -> None:
    found = explain(snapshot_of(without("Pod")), "claim/c")
    assert not any("no pod names it" in note for note in found.notes)


def test_objects_of_other_kinds_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    items = [*CLUSTER, other, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}}]
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    for command in (["explain", "p"], ["explain"], ["top"]):
        assert main([*command, "-f", str(tmp_path / "all.json")]) == 0
        line = "not evaluated: objects of kinds that this command does not read: PodGroup, Service"
        assert " ".join(capsys.readouterr().out.split()).count(line) == 1


def test_a_document_in_a_folder_that_is_no_object_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER}))
    (tmp_path / "kind.yaml").write_text("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n")
    (tmp_path / "values.yaml").write_text("image: x\n")
    assert main(["explain", "p", "-f", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert err.count("not evaluated: it is no object of the Kubernetes API") == 2
    assert main(["explain", "p", "-f", str(tmp_path / "kind.yaml")]) == 2, "a file that the user names is read"


def test_a_document_of_standard_input_that_is_no_object_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "image: x\n---\n" + json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["explain", "p", "-f", "-"]) == 2
    assert "standard input:1: apiVersion: missing" in capsys.readouterr().err
