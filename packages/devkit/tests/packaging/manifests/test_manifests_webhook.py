"""The deployed webhook: an API server with the rendered configuration calls a process with the rendered arguments."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from dra_devkit.localcluster.apiserver import certificate
from dra_devkit.localcluster.apiserver.validation.policies import compile_conditions
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.packaging.manifests.values import merged
from dra_devkit.scheduling.cel.expressions import Budget
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLASSES
from dra_kubeletplugin.resourceapi.conversion import convert
from packages.devkit.tests.packaging.manifests.cluster_commands import TIMEOUT, run
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    ROOT,
    container,
    helmed,
    kustomized,
    one,
    plain,
    with_features,
)

DRIVER = "gpu.example.com"
GPU: JSON = {
    "driverName": DRIVER,
    "driverFile": str(ROOT / "drivers/gpu_example"),
    "options": {"NUM_DEVICES": "2"},
}
HOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False)


# --- requests that the API server sends -------------------------------------------------------------------------------------

ENV = cel.NewEnv(
    variables=dict.fromkeys(("request", "object", "oldObject"), cel.Type.DYN), extensions=[ext_optional.ExtOptional()]
)
CONDITIONS = one(plain(with_features(*ALL, **GPU)), "ValidatingWebhookConfiguration")["webhooks"][0]["matchConditions"]
OURS: JSON = {"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}
OTHERS: JSON = {"requests": ["a"], "opaque": {"driver": f"not-{DRIVER}", "parameters": {}}}
LATER: JSON = {"requests": ["a"], "notOpaque": {"driver": DRIVER}}  # a version of a future release
REQUESTS: list[JSON] = [
    {"name": "a", "exactly": {"deviceClassName": "g"}},
    {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "g"}, {"name": "y", "deviceClassName": "h"}]},
]


def with_config(kind: str, config: list[JSON] | None, version: str = "v1") -> JSON:
    parameters = {} if config is None else {"config": config}
    devices: JSON = {"requests": REQUESTS, **parameters}
    spec: JSON = {"ResourceClaim": {"devices": devices}, "ResourceClaimTemplate": {"spec": {"devices": devices}}}.get(
        kind, {"selectors": [], **parameters}
    )
    return convert({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}, version)


def is_sent(obj: JSON, old: JSON | None = None) -> bool:
    """Returns whether the API server sends the object. Checks that both CEL implementations agree."""
    data = {"request": {"operation": "UPDATE" if old else "CREATE"}, "object": obj, "oldObject": old}
    googles = all(ENV.compile(c["expression"]).eval(data=data).plain_value() for c in CONDITIONS)
    own_webhook = all(e.evaluate(data, Budget()) is True for e in compile_conditions(CONDITIONS).values())
    assert googles == own_webhook
    return googles


KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
EACH = [pytest.param(k, v, id=f"{k}-{v}") for k in KINDS for v in ("v1", "v1beta2", "v1beta1")]


@pytest.mark.parametrize(("kind", "version"), EACH)
def test_only_objects_that_name_the_driver_are_sent(kind: str, version: str) -> None:
    for config, sent in (
        (None, False),
        ([], False),
        ([OTHERS], False),
        ([LATER], False),
        ([OURS], True),
        ([OTHERS, LATER, OURS], True),
        ([OTHERS, OTHERS], False),
    ):
        assert is_sent(with_config(kind, config, version)) is sent, config
    assert not is_sent({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}})


@pytest.mark.parametrize(("kind", "version"), EACH)
def test_an_update_is_sent_if_it_changes_the_requests(kind: str, version: str) -> None:
    """Other updates are not sent, so objects can lose their finalizers while the webhook is down."""
    before = with_config(kind, [OURS], version)
    relabelled = merged(before, {"metadata": {"labels": {"a": "b"}, "finalizers": ["x"]}})
    assert not is_sent(relabelled, before)
    assert is_sent(with_config(kind, [OURS, OTHERS], version), before)
    assert not is_sent(with_config(kind, [OTHERS], version), before)


# --- an API server and a process ----------------------------------------------------------------------


@dataclass
class Process:
    """Runs the Deployment's command as a process, with its arguments and variables, and with paths of this machine."""

    deployment: JSON
    options: JSON
    folder: Path
    url: str = ""
    process: asyncio.subprocess.Process | None = None
    log: list[str] = field(default_factory=list)

    async def start(self) -> None:
        inner = container(self.deployment)
        env = {e["name"]: e["value"] for e in inner["env"]} | self.options
        for name, value in (("TLS_CERT_FILE", "tls.crt"), ("TLS_PRIVATE_KEY_FILE", "tls.key")):
            assert env[name] == f"/etc/webhook/tls/{value}"
            env[name] = str(self.folder / value)
        env["WEBHOOK_ADDRESS"] = "127.0.0.1:0"
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", *inner["args"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stderr
        async with asyncio.timeout(100):
            while not self.url:
                line = (await self.process.stderr.readline()).decode()
                assert line, self.log
                self.log.append(line)
                if "serving admission reviews at " in line:
                    self.url = line.partition("serving admission reviews at ")[2].split('"')[
                        0
                    ]  # the end of a JSON string

    async def stop(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.terminate()
            async with asyncio.timeout(60):
                await self.process.communicate()


def write_certificate(folder: Path, cert: str, key: str) -> None:
    """Writes the files as the kubelet does: they are links into a folder, and the kubelet replaces the link to that folder."""
    new_certificate = folder / f"..{len(list(folder.iterdir()))}"
    new_certificate.mkdir(parents=True)
    (new_certificate / "tls.crt").write_text(cert)
    (new_certificate / "tls.key").write_text(key)
    (folder / "..new").symlink_to(new_certificate.name)
    (folder / "..new").rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def base(cert: str) -> str:
    return base64.b64encode(cert.encode()).decode()


def reached(manifests: list[JSON], url: str) -> list[JSON]:
    """Replaces the Service by a URL, because the local cluster has no network to the Service."""
    for manifest in manifests:
        for hook in manifest.get("webhooks", ()):
            assert hook["clientConfig"].pop("service")["path"] == "/validate"
            hook["clientConfig"]["url"] = url
    return manifests


@contextlib.asynccontextmanager
async def deployed(
    cluster: LocalCluster, folder: Path, policy: str, *, by_helm: bool = False
) -> AsyncIterator[Process]:
    cert, key = certificate.make(["127.0.0.1"])
    (folder / "tls").mkdir(exist_ok=True)
    write_certificate(folder / "tls", cert, key)
    values = with_features(
        "webhook", "webhookCABundle", webhookFailurePolicy=policy, **GPU, **{"webhookCABundle": base(cert)}
    )
    manifests = (helmed if by_helm else kustomized)(values, folder / "rendered")
    webhook = Process(one(manifests, "Deployment"), values["options"], folder / "tls")
    await webhook.start()
    try:
        configuration = [one(manifests, "ValidatingWebhookConfiguration")]
        parameters = yaml.safe_dump_all(reached(configuration, webhook.url))
        await run(cluster, "kubectl", "apply", "--server-side", "--validate=strict", "-f", "-", stdin=parameters)
        yield webhook
    finally:
        await webhook.stop()


def claim(name: str, **parameters: Any) -> JSON:
    whole = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", **parameters}
    entry = {"opaque": {"driver": DRIVER, "parameters": whole}}
    return merged(with_config("ResourceClaim", [entry]), {"metadata": {"name": name, "namespace": "default"}})


def device_class(name: str, *entries: JSON) -> JSON:
    return merged(with_config("DeviceClass", list(entries)), {"metadata": {"name": name}})


RIGHT, WRONG = {"sharing": {"strategy": "TimeSlicing"}}, {"sharin": {}}
SENTENCE = "spec.devices.config[0].opaque: parameters: unknown field 'sharin', did you mean 'sharing'?"
DENIED = f'admission webhook "parameters.dra.{DRIVER}" denied the request: '


@pytest.mark.kubectl
@pytest.mark.helm
@pytest.mark.parametrize("by_helm", [False, True], ids=["kustomize", "helm"])
async def test_an_invalid_claim_is_rejected_with_its_error_and_a_valid_claim_is_created(
    by_helm: bool, tmp_path: Path
) -> None:
    async with LocalCluster(("node-1",)) as cluster, deployed(cluster, tmp_path, "Fail", by_helm=by_helm):
        with pytest.raises(ApiError) as refused:
            await cluster.apply(claim("wrong", **WRONG))
        assert DENIED + SENTENCE in str(refused.value)
        await cluster.apply(claim("right", **RIGHT))
        bad = {"opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfg"}}}
        says = r"spec\.config\[1\]\.opaque: parameters\.kind: 'GpuConfg' is not known to gpu\.example\.com, did you mean 'GpuConfig'"
        with pytest.raises(ApiError, match=says):
            await cluster.apply(device_class("wrong", OTHERS_IN_CLASS, bad))
        await cluster.apply(device_class("others", OTHERS_IN_CLASS))


OTHERS_IN_CLASS: JSON = {"opaque": OTHERS["opaque"]}


@pytest.mark.kubectl
async def test_an_update_with_an_old_fault_passes_and_a_new_fault_is_rejected(tmp_path: Path) -> None:
    old = {"opaque": claim("x", **WRONG)["spec"]["devices"]["config"][0]["opaque"]}
    new = {"opaque": claim("x", shering={})["spec"]["devices"]["config"][0]["opaque"]}
    async with LocalCluster(("node-1",)) as cluster:
        await cluster.apply(device_class("gpu", old))  # a claim from before the installation of the webhook
        async with deployed(cluster, tmp_path, "Fail"):
            kept = await cluster.client.get(CLASSES, "gpu")
            kept["spec"]["config"] = [OTHERS_IN_CLASS, old]
            kept = await cluster.client.update(CLASSES, kept)
            kept["spec"]["config"] = [OTHERS_IN_CLASS, new]
            with pytest.raises(ApiError, match="unknown field 'shering', did you mean 'sharing'"):
                await cluster.client.update(CLASSES, kept)


@pytest.mark.full
@pytest.mark.kubectl
async def test_the_webhook_uses_a_replaced_certificate_without_a_restart(tmp_path: Path) -> None:
    async with LocalCluster(("node-1",)) as cluster, deployed(cluster, tmp_path, "Fail") as webhook:
        new_certificate, key = certificate.make(["127.0.0.1"])
        write_certificate(tmp_path / "tls", new_certificate, key)
        host, port = webhook.url.removeprefix("https://").partition("/")[0].split(":")
        async with asyncio.timeout(60):
            while await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))) != new_certificate:
                await asyncio.sleep(0.1)
        with pytest.raises(
            ApiError, match=r"failed calling webhook .*[Cc]ertificate"
        ):  # no API server trusts this certificate yet
            await cluster.apply(claim("right", **RIGHT))
        found = await cluster.client.get(HOOKS, "npu-parameters")
        found["webhooks"][0]["clientConfig"]["caBundle"] = base(new_certificate)
        await cluster.client.update(HOOKS, found)
        await cluster.apply(claim("right", **RIGHT))
        with pytest.raises(ApiError, match="did you mean 'sharing'"):
            await cluster.apply(claim("wrong", **WRONG))


@pytest.mark.kubectl
@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_the_failure_policy_applies_to_requests_while_the_webhook_is_down(policy: str, tmp_path: Path) -> None:
    async with LocalCluster(("node-1",)) as cluster, deployed(cluster, tmp_path, policy) as webhook:
        entry = {"opaque": claim("x", **RIGHT)["spec"]["devices"]["config"][0]["opaque"]}
        await cluster.apply(device_class("ours", entry))
        await webhook.stop()
        if policy == "Fail":
            with pytest.raises(ApiError, match=f'failed calling webhook "parameters.dra.{DRIVER}"'):
                await cluster.apply(claim("wrong", **WRONG))
        else:
            await cluster.apply(claim("wrong", **WRONG))
        await cluster.apply(device_class("others", OTHERS_IN_CLASS))
        kept = await cluster.client.get(CLASSES, "ours")
        kept["metadata"]["labels"] = {"a": "b"}
        await cluster.client.update(
            CLASSES, kept
        )  # The claim requests no device of the driver, so the API server does not call the webhook.
        await cluster.client.delete(CLASSES, "ours")


@pytest.mark.kubectl
@pytest.mark.helm
async def test_helm_removes_the_webhook_completely(tmp_path: Path) -> None:
    """A remaining configuration without a running webhook would block every claim of the driver permanently."""
    cert, _ = certificate.make(["127.0.0.1"])
    values = with_features("webhook", "webhookCABundle", webhookFailurePolicy="Fail", **GPU, webhookCABundle=base(cert))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    kinds = "validatingwebhookconfiguration,service,poddisruptionbudget,deployment,serviceaccount"
    async with LocalCluster(("node-1",)) as cluster:
        chart = str(ROOT / "deploy/helm/dra-driver")
        await run(
            cluster,
            "helm",
            "install",
            "npu",
            chart,
            "-f",
            str(tmp_path / "values.yaml"),
            "-n",
            "npu",
            "--create-namespace",
        )
        created = (await run(cluster, "kubectl", "get", kinds, "-n", "npu", "-o", "name")).split()
        assert {n.partition("/")[0].partition(".")[0] for n in created if "npu" in n} == set(kinds.split(","))
        await run(cluster, "helm", "uninstall", "npu", "-n", "npu", TIMEOUT)
        assert "npu" not in await run(cluster, "kubectl", "get", kinds, "-n", "npu", "-o", "name")
