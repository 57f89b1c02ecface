"""`dra explain` and `dra top` never show the cause in an Event as present without its age and a check of the objects that it names."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.event_messages import without_prefixes
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump
from dra_kubeletplugin.cli import main
from tests.docs.symptoms import event_message
from tests.helpers.objects import device_class, template
from tests.helpers.objects import pod as pod_object

HELD = (
    "DEVICE_HELD: device gpu-0 is still held by claim default/old (UID 8a1b0000-0000-4000-8000-000000000001), which is Prepared: "
    "it is free when that claim's pod has stopped [DRA-E114]"
)
PREFIXES = [
    "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim c: ",
    "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for claim default/c: ",
    "Failed to prepare dynamic resources: NodePrepareResources failed for claim default/c: ",
    "Failed to prepare dynamic resources: NodePrepareResources failed: rpc error: code = Unknown desc = ",
    "(combined from similar events): Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: ",
]


def ago(**since: float) -> str:
    return (datetime.now(UTC) - timedelta(**since)).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(message: str, time: str, reason: str = "FailedPrepareDynamicResources", type: str = "Warning") -> JSON:
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e-{reason}-{time}".lower().replace(":", "-"), "namespace": "default"},
        "type": type, "reason": reason, "message": message, "count": 25, "firstTimestamp": ago(days=1), "lastTimestamp": time,
        "source": {"component": "kubelet"}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "p-uid"},
    }  # fmt: skip


def claim(name: str, uid: str) -> JSON:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-uid"}],
    }
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    meta = {"name": name, "namespace": "default", "uid": uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def placed_pod(**status: Any) -> JSON:
    spec = {
        "nodeName": "node-1",
        "containers": [{"name": "main"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
    }
    meta = {"name": "p", "namespace": "default", "uid": "p-uid", "creationTimestamp": ago(hours=2)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"} | status}


NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": {"allocatable": {"pods": "110"}}}
OLD = claim("old", "8a1b0000-0000-4000-8000-000000000001")


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns the output of a command on objects, on one line."""

    def run(words: str, *objects: JSON, columns: int = 80) -> str:
        file = tmp_path / "cluster.yaml"
        file.write_text("---\n".join(dump(o, width=120, unicode=True) for o in (NODE, claim("c", "c-uid"), *objects)))
        monkeypatch.setenv("COLUMNS", str(columns))
        main([*words.split(), "-f", str(file)])
        return " ".join(capsys.readouterr().out.split())

    return run


@pytest.mark.parametrize("words", ["explain p", "explain", "top --once"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_cause_from_an_event_comes_first_without_prefix_and_with_its_age(words: str, prefix: str, show: Any) -> None:
    found = show(words, placed_pod(), OLD, event(prefix + HELD, ago(minutes=40)))
    assert "Failed to prepare" not in found and "NodePrepareResources" not in found
    assert re.search(
        r"(p waits:|p waits|default/p 2h) DEVICE_HELD: device gpu-0 is still held by claim default/old", found
    ), found
    assert found.count("DEVICE_HELD") == 1
    assert "(kubelet of node-1), reported 40m ago" in found


@pytest.mark.parametrize("words", ["explain p", "explain", "top --once"])
@pytest.mark.parametrize(
    ("message", "doubt"),
    [
        (PREFIXES[0] + HELD, "claim default/old no longer exists"),
        (PREFIXES[1] + "error preparing devices for claim default/other:3c8337ad-f366-4541-883d-30b9e99fd6be: no space", "claim default/other no longer exists"),
        (PREFIXES[0] + "device gpu-0 is in use by pod ml/trainer", "pod ml/trainer no longer exists"),
        (PREFIXES[0] + "device is prepared for claim 3c8337ad-f366-4541-883d-30b9e99fd6be", "claim with UID 3c8337ad"),
        ("Failed to prepare dynamic resources: fetch ResourceClaim c: resourceclaims.resource.k8s.io \"c\" not found", "claim c exists now"),
    ],
)  # fmt: skip
def test_a_cause_that_names_a_deleted_object_is_not_the_present_cause(
    words: str, message: str, doubt: str, show: Any
) -> None:
    found = show(words, placed_pod(), event(message, ago(minutes=40)))
    assert f"perhaps outdated, because {doubt}" in found
    assert found.count(doubt) == 1
    assert "reported 40m ago" in found


def test_an_event_of_the_newer_api_states_a_cause_too(show: Any) -> None:
    old = event("Failed to prepare dynamic resources: the card is hot", ago(minutes=20))
    names = {"involvedObject": "regarding", "message": "note", "source": "deprecatedSource", "count": "deprecatedCount"}
    names |= {f"{which}Timestamp": f"deprecated{which.title()}Timestamp" for which in ("first", "last")}
    new = {names.get(name, name): value for name, value in old.items()} | {"apiVersion": "events.k8s.io/v1"}
    assert show("explain pod/p", placed_pod(), new) == show("explain pod/p", placed_pod(), old)
    assert "the card is hot" in show("explain pod/p", placed_pod(), new)


def test_a_new_claim_with_the_name_of_a_deleted_claim_is_another_claim(show: Any) -> None:
    found = show("explain p", placed_pod(), claim("old", "another-uid"), event(PREFIXES[0] + HELD, ago(minutes=3)))
    assert "perhaps outdated, because claim default/old no longer exists" in found


@pytest.mark.parametrize(
    ("status", "later"),
    [
        ({}, "Pulling"),
        ({}, "FailedCreatePodSandBox"),
        ({"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}, ""),
    ],
)
def test_a_failed_prepare_that_has_succeeded_since_is_not_shown(status: JSON, later: str, show: Any) -> None:
    objects = [placed_pod(**status), OLD, event(PREFIXES[0] + HELD, ago(minutes=40))]
    objects += [event("later", ago(minutes=1), later, "Normal")] if later else []
    for words in ("explain p", "top --once"):
        assert "DEVICE_HELD" not in show(words, *objects)


def test_the_state_of_a_container_is_newer_than_each_event(show: Any) -> None:
    waits = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    found = show("explain p", placed_pod(containerStatuses=[waits]), OLD, event(PREFIXES[0] + HELD, ago(minutes=40)))
    assert "p waits: ImagePullBackOff of container main: no such image (kubelet of node-1)" in found
    assert "DEVICE_HELD" not in found


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_the_screen_of_top_shows_cause_and_age_on_one_line(columns: int) -> None:
    pytest.importorskip("textual", reason="textual is not installed: pip install 'dra-tools[top]'")
    from dra_tools.commands.top.lines import cells, pod_line, pod_width
    from dra_tools.usage.rows import PodRow

    row = PodRow("default", "p", "u", "node-1", ago(hours=2), (), reason=HELD, reported=ago(minutes=40))
    line = "".join(text for text, _ in pod_line(row, datetime.now(UTC).timestamp(), pod_width([row]), columns))
    assert cells(line) <= columns and line.endswith("…, reported 40m ago")
    assert "  DEVICE_HELD: device" in line


@pytest.mark.parametrize("cause", ["the board is stuck", "NodePrepareResources is not served", "board x: rpc error"])
def test_the_text_of_a_driver_is_never_cut(cause: str) -> None:
    assert without_prefixes(PREFIXES[0] + cause) == cause
    assert without_prefixes(cause) == cause


async def test_a_claim_that_a_quota_refuses_is_explained_once_and_in_top(capsys: pytest.CaptureFixture[str]) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-claims"},
        "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "0"}},
    }  # fmt: skip
    async with LocalCluster() as cluster:
        await cluster.apply(device_class(), template(), quota)
        await cluster.apply(pod_object("wants", templates=["t"]))
        await event_message(cluster, "wants", "FailedResourceClaimCreation")
        reported = "exceeded quota: no-claims"  # `dra top` reads no quotas
        refused = "ResourceQuota default/no-claims refuses the claim from template t"
        for words, text in ((["explain", "wants"], refused), (["explain"], refused), (["top", "--once"], reported)):
            await asyncio.to_thread(main, [words[0], "--kubeconfig", str(cluster.kubeconfig), *words[1:]])
            shown = " ".join(capsys.readouterr().out.split())
            assert [shown.count(refused), shown.count(reported)] == [text == refused, text == reported], shown
            assert text == refused or "so no claim was made from template t, reported" in shown


SHARED_STEP = (
    "SHARED_STEP: the shared step mode of gpu-0 is set up for claim default/old (UID 8a1b0000-0000-4000-8000-000000000001) with "
    "{'mode': 'a'}, and this claim needs {'mode': 'b'}: it waits until that claim's pod has stopped [DRA-E132]"
)


def test_explain_proposes_to_delete_pods_only_while_the_claim_that_uses_the_card_exists(show: Any) -> None:
    """When that claim is gone, the kubelet's next retry succeeds."""
    message = PREFIXES[0] + SHARED_STEP
    assert "or delete them; whether another card would do is not known" in show(
        "explain p", placed_pod(), OLD, event(message, ago())
    )
    found = show("explain p", placed_pod(), event(message, ago()))
    assert "perhaps outdated, because claim default/old" in found
    assert "delete" not in found
