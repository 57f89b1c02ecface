"""Deploys a driver with its own manifests, as `dra deploy` renders them for the test's image and namespace, and removes it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dra_kubeletplugin.base.yaml import dump

from .cluster import POD_NAMESPACE, RESOURCE, Cluster, Driver

_ADMIN = "resource.kubernetes.io/admin-access"


@dataclass
class Deployment:
    """The driver of a folder on a cluster.

    Args:
        image: the name of the driver's image.
        load: a shell command that brings the image to the nodes; empty if they have it or pull it.
        manifests: a file with rendered manifests, such as the output of ``helm template``; None to render deploy/values.yaml.
        values: a file with values that replace those of values.yaml.
    """

    cluster: Cluster
    image: str
    load: str
    manifests: Path | None = None
    values: Path | None = None
    text: str = field(default="", init=False)

    def deploy(self) -> None:
        """Loads the image, applies the manifests, and waits until the plugin is ready on each node."""
        if self.load:
            _run(["sh", "-c", self.load])
        self.text = self.manifests.read_text() if self.manifests else self._render()
        self.cluster.driver = self._driver()
        meta = {"name": POD_NAMESPACE, "labels": {_ADMIN: "true"}}
        self._delete_namespace()  # of a killed run
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}, namespace="")
        self.apply()

    def apply(self) -> None:
        """Applies the manifests, and waits until the plugin is ready on each node and has published its slices."""
        self.cluster.kubectl("apply", "-f", "-", stdin=self.text)
        self.wait_rolled_out()
        self.cluster.wait("the driver publishes devices", self.cluster.devices)

    def wait_rolled_out(self) -> None:
        name = f"{self.cluster.driver.namespace}/daemonsets/{self.cluster.driver.daemon_set}"
        path = f"/apis/apps/v1/namespaces/{name}"

        def rolled_out() -> bool:
            found = self.cluster.get(path)
            status = found["status"]
            wanted = status.get("desiredNumberScheduled", 0)
            return bool(
                status.get("observedGeneration", 0) >= found["metadata"]["generation"]
                and wanted > 0
                and wanted == status.get("updatedNumberScheduled", 0) == status.get("numberAvailable", 0)
            )

        self.cluster.wait(f"the DaemonSet {name} is ready on each node", rolled_out)

    def remove(self) -> None:
        """Deletes all objects of the tests, then the driver. Fails if slices of the driver stay."""
        if not self.text:
            return
        try:
            self._delete_namespace()
        finally:
            self.cluster.kubectl("delete", "--ignore-not-found", "--wait=true", "-f", "-", stdin=self.text, check=False)
            for path in (f"{RESOURCE}/deviceclasses", self.cluster.served("devicetaintrules")):
                for obj in self.cluster.items(path) if path else ():
                    if obj["metadata"]["name"].startswith(POD_NAMESPACE):
                        self.cluster.request("DELETE", f"{path}/{obj['metadata']['name']}")
        # The kubelet deletes the slices of a plugin that is gone for 30 s.
        self.cluster.wait("the kubelets delete the driver's slices", lambda: not self.cluster.slices())

    def _delete_namespace(self) -> None:
        path = f"/api/v1/namespaces/{POD_NAMESPACE}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.cluster.kubectl("delete", "namespace", POD_NAMESPACE, "--ignore-not-found", "--wait=false")
        self.cluster.wait(f"the namespace {POD_NAMESPACE} is gone", lambda: self.cluster.get(path) is None)

    def _render(self) -> str:
        values = self.cluster.settings.folder / "deploy/values.yaml"
        with tempfile.TemporaryDirectory() as folder:
            own = {"image": self.image, "pods": {"all": {"imagePullPolicy": "IfNotPresent"}}}
            (overrides := Path(folder, "overrides.yaml")).write_text(dump(own))
            files = [word for f in (overrides, self.values) if f for word in ("-f", str(f))]
            dra = [sys.executable, "-m", "dra_kubeletplugin", "deploy"]
            _run([*dra, str(values), *files, "-C", f"{folder}/deploy"])
            return _run(["kubectl", "kustomize", f"{folder}/deploy"])

    def _driver(self) -> Driver:
        documents = [d for d in yaml.safe_load_all(self.text) if d]
        classes = [d["metadata"]["name"] for d in documents if d["kind"] == "DeviceClass"]
        for document in documents:
            if document["kind"] == "DaemonSet":
                pod, meta = document["spec"]["template"]["spec"], document["metadata"]
                env = {e["name"]: e.get("value", "") for c in pod["containers"] for e in c.get("env") or []}
                if name := env.get("DRIVER_NAME"):
                    device_class = self.cluster.settings.profile.device_class or next(iter(classes), "")
                    text = "no DeviceClass is in the manifests: set deviceClasses in deploy/values.yaml, or device_class in e2e.toml"
                    assert device_class, text
                    account = pod["serviceAccountName"]
                    return Driver(name, meta["namespace"], meta["name"], account, device_class)
        raise AssertionError("no DaemonSet of the manifests has the variable DRIVER_NAME")


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, start_new_session=True)
    assert done.returncode == 0, f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
    return done.stdout
