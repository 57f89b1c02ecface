"""``dra explain`` against the local API server over HTTPS: forms of kubeconfigs, API versions, permissions, pages and messages."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.resourceapi.conversion import VERSIONS
from packages.tools.tests.accounts import token_with_rules, write_kubeconfig
from tests.docs.symptoms import event_message
from tests.helpers.objects import claim, device_class, pod, slice_of, template


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Two devices, a pod without claims and a pod whose claim requests three devices."""
    async with LocalCluster() as cluster:
        wants_two = claim("two")
        wants_two["spec"]["devices"]["requests"][0]["exactly"]["count"] = 3
        await cluster.apply(device_class(), slice_of("node-1", ["d0", "d1"]), template(), wants_two)
        await cluster.apply(pod("waits", claims=["two"]), pod("bare"))
        yield cluster


async def test_explain_selects_the_same_kubeconfig_as_kubectl(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".kube" / "config"
    home.parent.mkdir()
    config = json.loads(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "elsewhere"
    home.write_text(json.dumps(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert await asyncio.to_thread(main, ["explain", "waits"]) == 2
    assert (
        "there is no pod waits in namespace elsewhere; it exists in namespace default (use -n)"
        in capsys.readouterr().err
    )
    assert await asyncio.to_thread(main, ["explain", "waits", "-n", "default"]) == 1
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{cluster.kubeconfig}")
    assert await asyncio.to_thread(main, ["explain", "waits"]) == 1


async def dra(cluster: LocalCluster, *words: str, kubeconfig: Path | None = None) -> int:
    path = str(kubeconfig or cluster.kubeconfig)
    return await asyncio.to_thread(main, [words[0], "--kubeconfig", path, *words[1:]])


@pytest.mark.parametrize("form", ["token", "tokenFile", "exec", "data", "context"])
async def test_explain_reads_each_form_of_a_kubeconfig_over_https(
    cluster: LocalCluster, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    assert server["server"].startswith("https://")
    words = ["explain", "pod/waits"]
    match form:
        case "tokenFile":
            (tmp_path / "token").write_text(user.pop("token"))
            user["tokenFile"] = "token"
        case "exec":
            credential = {
                "apiVersion": "client.authentication.k8s.io/v1",
                "kind": "ExecCredential",
                "status": {"token": user.pop("token")},
            }
            (tmp_path / "answer.json").write_text(json.dumps(credential))
            code = f"print(open({str(tmp_path / 'answer.json')!r}).read())"
            user["exec"] = {
                "apiVersion": credential["apiVersion"],
                "command": sys.executable,
                "args": ["-c", code],
                "interactiveMode": "Never",
            }
        case "data":
            found = Path(server.pop("certificate-authority")).read_bytes()
            server["certificate-authority-data"] = base64.b64encode(found).decode()
        case "context":
            config["contexts"].append(
                {"name": "other", "context": {**config["contexts"][0]["context"], "namespace": "default"}}
            )
            config["contexts"][0]["context"]["cluster"] = "nowhere"
            words += ["--context", "other"]
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    assert await dra(cluster, *words, kubeconfig=file) == 1
    assert "each node has at most 2 usable" in capsys.readouterr().out


async def test_explain_without_a_name_lists_all_waiting_pods(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dra(cluster, "explain") == 1
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["POD", "STATE", "WHY"]
    assert [row.split()[:2] for row in rows] == [["default/waits", "waits"]]
    assert await dra(cluster, "explain", "-n", "kube-system") == 0
    assert capsys.readouterr().out == "no pod waits for devices\n"
    assert await dra(cluster, "explain", "-o", "json") == 1
    assert [e["subject"] for e in json.loads(capsys.readouterr().out)["waiting"]] == ["pod default/waits"]


async def test_the_list_and_top_show_the_kubelets_message_for_a_pod_that_does_not_start(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """No plugin serves the driver, so the kubelet of node-1 reports that the driver is not registered."""
    await cluster.apply(claim("one"), pod("placed", claims=["one"]))
    await event_message(cluster, "placed", "FailedPrepareDynamicResources")
    for words in (["explain"], ["top", "--once"]):
        await dra(cluster, *words)
        message = " ".join(capsys.readouterr().out.split())
        assert "default/placed" in message
        assert "DRA driver toy.example.com is not registered (kubelet of node-1), reported" in message, message
    await dra(cluster, "explain", "placed", "-o", "yaml")
    found = yaml.safe_load(capsys.readouterr().out)
    assert [d["device"] for c in found["claims"] for d in c["devices"]] == ["d0"]
    assert [(found["state"], r["kind"]) for r in found["reasons"]] == [("waits", "kubelet")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_explain_reads_a_cluster_that_serves_a_single_version(
    cluster: LocalCluster, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.wait("the claim", lambda: asyncio.sleep(0, cluster.claims()))
    cluster.api.injected_faults.served = {version}
    assert await dra(cluster, "explain", "pod/waits", "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [r["kind"] for g in found["groups"] for q in g["requests"] for r in q["reasons"]] == ["too-few-devices"]


async def test_explain_distinguishes_a_cluster_without_dra_from_a_missing_object(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dra(cluster, "explain", "pod/wait") == 2
    assert "there is no pod wait in namespace default; similar name: waits" in capsys.readouterr().err
    cluster.api.injected_faults.served = set()
    assert await dra(cluster, "explain", "pod/waits") == 2
    message = capsys.readouterr().err
    assert "this cluster does not serve resource.k8s.io" in message
    assert message.count("\n") == 1


async def reader(cluster: LocalCluster, tmp_path: Path, *resources: str) -> Path:
    """Returns a kubeconfig of an account that may list these resources everywhere, and pods and claims of its own namespace."""
    own = ["pods", "resourceclaims", "resourceclaimtemplates", "events"]
    everywhere, there = ([{"apiGroups": ["*"], "resources": r, "verbs": ["list"]}] for r in (list(resources), own))
    return write_kubeconfig(cluster, tmp_path, await token_with_rules(cluster.client, everywhere, there))


async def test_explain_names_missing_permissions_and_explains_the_rest(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = await reader(cluster, tmp_path, "resourceslices", "nodes")
    assert await dra(cluster, "explain", "pod/waits", kubeconfig=file) == 1
    message = " ".join(capsys.readouterr().out.split())
    assert "each node has at most 2 usable" in message
    assert (
        "cannot list deviceclasses.resource.k8s.io in the cluster: selectors of classes are not known: "
        "more devices seem to fit than really do; "
        'ask for a ClusterRole with verb "list" on "deviceclasses" of API group "resource.k8s.io"'
    ) in message
    assert "cannot list pods in the cluster" in message


async def test_without_permission_for_slices_explain_states_nothing_about_devices(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = await reader(cluster, tmp_path, "nodes")
    assert await dra(cluster, "explain", "pod/waits", kubeconfig=file) == 3
    message = " ".join(capsys.readouterr().out.split())
    assert "the result depends on objects that could not be read" in message
    assert "cannot list resourceslices.resource.k8s.io in the cluster: no device is known" in message
    assert "no device is published" not in message
