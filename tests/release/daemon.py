"""Runs a pod of a driver's DaemonSet of the local cluster in podman, with the options that a kubelet would use."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.config import SERVICE_ACCOUNT
from packages.devkit.tests.packaging.manifests.deployed import Deployed
from tests.release.images import RUN
from tests.release.installation import clean_environment


@asynccontextmanager
async def running(deployed: Deployed, pod: JSON, image: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs the pod's only container inside the context, and writes its output to ``log``."""
    account = log.parent / "account"
    account.mkdir()
    (account / "token").write_text(await deployed.token("DaemonSet", pod))
    (account / "ca.crt").write_text((deployed.cluster.state / "serviceaccount/ca.crt").read_text())
    api = urlsplit(deployed.cluster.api.public_url)
    options = [
        *RUN, "--network=host", "--name", pod["metadata"]["uid"], "--volume", f"{account}:{SERVICE_ACCOUNT}:ro",
        "--env", f"KUBERNETES_SERVICE_HOST={api.hostname}", "--env", f"KUBERNETES_SERVICE_PORT={api.port}",
        *_options(pod, deployed.objects), image, *pod["spec"]["containers"][0]["args"],
    ]  # fmt: skip
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "podman", "run", *options, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=clean_environment()
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)  # podman forwards the signal to the container
        await process.wait()


def _options(pod: JSON, objects: list[JSON]) -> Iterator[str]:
    (container,) = pod["spec"]["containers"]
    fields = {"metadata.uid": pod["metadata"]["uid"], "spec.nodeName": pod["spec"]["nodeName"]}
    maps = {o["metadata"]["name"]: o["data"] for o in objects if o["kind"] == "ConfigMap"}
    environment = {k: v for source in container["envFrom"] for k, v in maps[source["configMapRef"]["name"]].items()}
    for entry in container["env"]:
        field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        environment[entry["name"]] = fields[field] if field else entry.get("value", "")
    for name, value in (
        environment | {"HTTP_ADDRESS": "127.0.0.1:0"}
    ).items():  # The container shares the host's network, so a fixed port could be in use.
        yield from ("--env", f"{name}={value}")
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    for mount in container["volumeMounts"]:
        if "hostPath" in (volume := volumes[mount["name"]]):
            mode = "ro" if mount.get("readOnly") else "rw"
            Path(volume["hostPath"]["path"]).mkdir(parents=True, exist_ok=True)  # DirectoryOrCreate
            yield from ("--volume", f"{volume['hostPath']['path']}:{mount['mountPath']}:{mode}")
        else:
            yield from ("--tmpfs", mount["mountPath"])
    yield from _security(container["securityContext"])


def _security(context: JSON) -> Iterator[str]:
    yield from ("--user", str(context["runAsUser"]))
    if context["readOnlyRootFilesystem"]:
        yield "--read-only"
    if context.get("privileged"):
        yield "--privileged"
    if context.get("allowPrivilegeEscalation") is False:
        yield "--security-opt=no-new-privileges"
    for capability in context.get("capabilities", {}).get("drop", []):
        yield f"--cap-drop={capability}"
