"""Claim records in a running cluster, observed through kubectl: an update, a reboot, damaged and removed files, a full disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import cli
from tests.helpers.crash.file_faults import own_disk
from tests.helpers.crash.record_stores import damage_body, damage_file, remove_records
from tests.helpers.dev_process import DevProcess, run_dev
from tests.helpers.waiting import block_until

pytestmark = [pytest.mark.kubectl, pytest.mark.full]

DRIVER = """
from dra_kubeletplugin import Claim, ContainerEdits, Driver


class Gpu(Driver):
    name = "gpu.example.com"

    def devices(self):
        return [function.device() for function in self.host.pci(vendor=0x10DE)]

    def prepare(self, claim: Claim):
        return [d.prepared(ContainerEdits(env={"GPU": d.name})) for d in claim.devices]
"""
HOST = "functions:\n" + "".join(
    f'- {{address: "0000:{bus}:00.0", vendor: 0x10de, device: 0x2330, class: 0x030200}}\n' for bus in (17, 18, 19)
)
PLUGIN = "node-1/kubelet/plugins/gpu.example.com"
CLASS_AND_TEMPLATE: list[dict[str, Any]] = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.example.com"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
        },
    },
]


def pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
    }


class Cluster:
    """A node with three devices, and the steps of an operator."""

    def __init__(self, dev: DevProcess) -> None:
        self.dev = dev

    def apply(self, *objects: dict[str, Any]) -> None:
        self.dev.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def run(self, *names: str) -> None:
        """Creates pods and waits until they run."""
        self.apply(*map(pod, names))
        block_until(lambda: all(self.status(name).get("phase") == "Running" for name in names))

    def delete(self, name: str) -> None:
        """Deletes a pod and waits until its claim is deleted too."""
        self.dev.kubectl("delete", "pod", name, "--wait=false")
        block_until(
            lambda: not [c for c in self.items("resourceclaims") if c["metadata"]["name"].startswith(f"{name}-")]
        )

    def items(self, kind: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.dev.kubectl("get", kind, "-o", "json"))["items"]
        return listed

    def claims(self) -> dict[str, dict[str, Any]]:
        """Returns the claim of each pod."""
        return {c["metadata"]["name"].split("-")[0]: c for c in self.items("resourceclaims")}

    def status(self, name: str) -> dict[str, Any]:
        return next((p.get("status", {}) for p in self.items("pods") if p["metadata"]["name"] == name), {})

    def allocated_devices(self) -> dict[str, str]:
        """Returns the device of each pod from the API server."""
        return {
            name: allocation["devices"]["results"][0]["device"]
            for name, claim in self.claims().items()
            if (allocation := claim.get("status", {}).get("allocation"))
        }

    def dra_claims(self, *args: str) -> str:
        """Returns what ``dra claims`` prints on the node."""
        out = io.StringIO()
        state = self.dev.state
        folders = ["--kubelet-root", str(state / "node-1/kubelet"), "--cdi-root", str(state / "node-1/cdi")]
        with contextlib.redirect_stdout(out):
            assert cli.main(["claims", *folders, *args]) == 0
        return out.getvalue()

    def recorded_devices(self) -> dict[str, str]:
        """Returns the device of each pod from ``dra claims``."""
        claims = json.loads(self.dra_claims("-o", "json"))["claims"]
        return {c["name"].split("-")[0]: c["devices"][0]["device"] for c in claims}

    def uid(self, name: str) -> str:
        """Returns the UID of the claim of a pod."""
        return str(self.claims()[name]["metadata"]["uid"])

    @contextlib.contextmanager
    def plugin_killed(self, *damaged_notes: str) -> Iterator[Path]:
        """Yields the folder of the records while no plugin runs. Removes the notes of these claims, which are copies of their records."""
        pid = self.dev.driver()["pid"]
        os.kill(pid, signal.SIGSTOP)  # dev starts a killed plugin again at once
        for uid in damaged_notes:
            for note in (self.dev.state / "node-1/cdi").glob(f".*{uid}*"):
                note.unlink()
        yield self.dev.state / PLUGIN / "claims"
        os.kill(pid, signal.SIGKILL)
        block_until(lambda: self.dev.driver()["pid"] not in {pid, None})

    def events(self, name: str) -> str:
        return self.dev.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json")


@contextlib.contextmanager
def running(folder: Path, *args: str) -> Iterator[Cluster]:
    (folder / "driver.py").write_text(DRIVER)
    (folder / "host.yaml").write_text(HOST)
    with run_dev(folder, str(folder / "driver.py"), "--host", str(folder / "host.yaml"), *args) as dev:
        cluster = Cluster(dev)
        cluster.apply(*CLASS_AND_TEMPLATE)
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as running_cluster:
        yield running_cluster


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, because the length of socket paths is limited."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_rolling_update_keeps_the_claims_of_running_pods(cluster: Cluster) -> None:
    cluster.run("a", "b")
    before = cluster.allocated_devices()
    cluster.dev.verb("upgrade-driver")
    assert cluster.recorded_devices() == before
    cluster.run("c")
    cluster.delete("a")
    assert cluster.recorded_devices() == cluster.allocated_devices() and set(cluster.recorded_devices()) == {"b", "c"}
    cluster.run("d")  # on the device of the deleted pod
    assert len(set(cluster.recorded_devices().values())) == 3


def test_a_reboot_prepares_the_claims_of_restarted_pods_again(cluster: Cluster) -> None:
    cluster.run("a")
    driver = cluster.dev.driver()["pid"]
    cluster.dev.verb("reboot-node")
    assert cluster.dev.driver()["pid"] != driver
    cluster.delete("a")
    cluster.run("b", "c", "d")
    assert (
        cluster.recorded_devices() == cluster.allocated_devices() and len(set(cluster.recorded_devices().values())) == 3
    )


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_removed_folder_of_records_releases_no_device(cluster: Cluster, stopped: bool) -> None:
    cluster.run("a", "b")
    before = cluster.allocated_devices()
    records = cluster.dev.state / PLUGIN / "claims"
    if stopped:
        # A stopped plugin has no memory, so the next plugin reads the notes beside the CDI specs.
        os.kill(cluster.dev.driver()["pid"], 9)
    remove_records(records)
    block_until(lambda: records.exists() and cluster.recorded_devices() == before)
    cluster.run("c")
    assert len(set(cluster.recorded_devices().values())) == 3
    assert "/claims was removed" in cluster.dev.log() or stopped
    for name in ("a", "b", "c"):
        cluster.delete(name)
    assert cluster.recorded_devices() == {}


def test_a_file_damaged_under_a_running_plugin_is_written_again(cluster: Cluster) -> None:
    cluster.run("a", "b")
    before = cluster.allocated_devices()
    damage_file(cluster.dev.state / PLUGIN / "claims", cluster.uid("a"))
    block_until(lambda: "was damaged; it is written again" in cluster.dev.log())
    assert cluster.recorded_devices() == before
    cluster.run("c")
    assert len(set(cluster.recorded_devices().values())) == 3


def test_a_damaged_first_line_without_a_copy_blocks_new_claims_until_an_operator_forgets_the_claim(
    cluster: Cluster,
) -> None:
    cluster.run("a", "b")
    uid = cluster.uid("a")
    with cluster.plugin_killed(uid) as records:
        damage_file(records, uid)
    cluster.apply(pod("c"))
    block_until(lambda: "HARDWARE_UNKNOWN" in cluster.events("c"))
    assert f"run `dra claims forget UID`: {uid}" in cluster.dev.log()
    assert "its devices are not known" in cluster.dra_claims()
    cluster.delete("b")  # a prepared claim is unprepared as always
    cluster.dev.kubectl("delete", "pod", "a", "--wait=false")
    cluster.dra_claims("forget", uid, "--yes")
    cluster.run("c", "d")
    assert len(set(cluster.recorded_devices().values())) == 2


def test_a_damaged_second_line_without_a_copy_keeps_only_its_own_device(cluster: Cluster) -> None:
    cluster.run("a", "b")
    uid, devices = cluster.uid("a"), cluster.allocated_devices()
    with cluster.plugin_killed(uid) as records:
        damage_body(records, uid)
    cluster.run("c")
    assert cluster.allocated_devices()["c"] not in devices.values()
    block_until(
        lambda: "the second line of its file is damaged" in cluster.events(cluster.claims()["a"]["metadata"]["name"])
    )
    assert "the second line of its file is damaged" in cluster.dra_claims()
    cluster.dev.kubectl("delete", "pod", "a", "--wait=false")
    cluster.delete("b")
    cluster.dra_claims("forget", uid, "--yes")
    cluster.run("d", "e")
    assert len(set(cluster.recorded_devices().values())) == 3


@pytest.mark.mounts
def test_a_full_disk_is_named_in_the_events_of_the_pod_and_the_pod_runs_later(
    tmp_path: Path, short_folder: Path
) -> None:
    state = short_folder / "state"
    with own_disk(state / PLUGIN, "1m"), running(tmp_path, "--state-dir", str(state)) as cluster:
        cluster.run("a")
        filler = state / PLUGIN / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        cluster.apply(pod("b"))
        block_until(lambda: "/claims cannot be written, the disk is full" in cluster.events("b"))
        assert cluster.status("b")["phase"] == "Pending"
        assert cluster.status("a")["phase"] == "Running"
        filler.unlink()
        block_until(lambda: cluster.status("b")["phase"] == "Running")
        assert (
            cluster.recorded_devices() == cluster.allocated_devices()
            and len(set(cluster.recorded_devices().values())) == 2
        )
