"""Measures time and memory of ``dra explain`` on a large cluster: ``python -m bench.explaining [--nodes 500] [--claims 5000]``.

The command runs as an operator runs it: in its own process, with a kubeconfig, over HTTPS. The API server is the local one, in this
process. The bench also measures ``dra simulate`` with 1,000 pods on the nodes and devices of the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.certificate import write as make_certificate
from dra_kubeletplugin.base.json_types import JSON

API = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"
_PER_NODE = 8


def objects(nodes: int, claims: int) -> Iterator[tuple[str, JSON]]:
    """Yields a cluster where one node in five has large devices, and claims of running pods hold most devices."""
    draw = random.Random(1)
    yield "deviceclasses.resource.k8s.io", _class()
    created = 0
    for i in range(nodes):
        name = f"node-{i:04}"
        status = {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}}
        yield "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}
        yield "resourceslices.resource.k8s.io", _slice(name, "80Gi" if i % 5 == 0 else "16Gi")
        for k in range(_PER_NODE):
            if created < claims and (i % 5 == 0 or draw.random() < 0.9):
                yield from _held(created, name, f"gpu-{k}")
                created += 1
    for number in range(created, claims):
        yield "resourceclaims.resource.k8s.io", _claim(f"c{number}", 1)
    yield (
        "resourceclaims.resource.k8s.io",
        _claim("large", 2, f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'),
    )
    spec = {
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "large"}],
    }
    yield "pods", _object("v1", "Pod", "train", spec, {"phase": "Pending"})


def _object(api: str, kind: str, name: str, spec: JSON, status: JSON) -> JSON:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
        "status": status,
    }


def _class() -> JSON:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}


def _slice(node: str, memory: str) -> JSON:
    attributes = {name: {"string": f"{name}-{node}"} for name in ("uuid", "serial", "model")}
    devices = [
        {"name": f"gpu-{k}", "attributes": attributes, "capacity": {"memory": {"value": memory}}}
        for k in range(_PER_NODE)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpu"}, "spec": spec}


def _claim(name: str, count: int, selector: str = "true") -> JSON:
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": selector}}],
    }
    return _object(API, "ResourceClaim", name, {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}, {})


def _held(number: int, node: str, device: str) -> Iterator[tuple[str, JSON]]:
    claim, pod = _claim(f"c{number}", 1), f"p{number}"
    where = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": device}]
    allocation = {"devices": {"results": results}, "nodeSelector": where, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    claim["status"] = {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}],
    }
    yield "resourceclaims.resource.k8s.io", claim
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "x"}]}
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"c{number}"}]
    yield "pods", _object("v1", "Pod", pod, spec, {"phase": "Running"})


@dataclass(frozen=True)
class Run:
    """A finished command: seconds of wall time and CPU time, maximum resident MiB, exit code, standard output."""

    took: float
    cpu: float
    memory: float
    code: int
    output: str

    def __str__(self) -> str:
        lines = "\n".join(self.output.splitlines()[:3])
        return (
            f"{self.took:.2f} s ({self.cpu:.2f} s of the processor), {self.memory:.0f} MiB, exit {self.code}\n{lines}"
        )


async def _measured(words: Sequence[str]) -> Run:
    code = (
        "import json, resource, sys; from dra_kubeletplugin.cli import main; code = main(sys.argv[1:]); sys.stdout.flush(); "
        "used = resource.getrusage(resource.RUSAGE_SELF); "
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr); sys.exit(code)"
    )
    start = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    out, err = await process.communicate()
    took = time.monotonic() - start
    last = (err.decode().splitlines() or [""])[-1]
    if not last.startswith("[") or process.returncode not in {0, 1}:
        raise SystemExit(f"{' '.join(words)}: {err.decode()}")
    cpu, memory = json.loads(last)
    return Run(took, cpu, memory, process.returncode, out.decode())


def _workload(pods: int) -> list[JSON]:
    spec = {"spec": _claim("t", 4)["spec"]}
    template = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": spec}
    pod = {
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    }
    labels = {"app": "many"}
    template_of_pods = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template_of_pods}
    return [
        template,
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": deployment},
        _class(),
    ]


@asynccontextmanager
async def _serving(folder: Path, objects: Iterable[tuple[str, JSON]]) -> AsyncIterator[Path]:
    """Runs an API server over HTTPS with these objects and no controllers. Yields a kubeconfig."""
    certificate, key = make_certificate(folder, ["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(str(certificate), str(key))
    server = ApiServer(tls=tls)
    for resource, obj in objects:
        name = obj["metadata"]["name"]
        server.storage.put(resource, {**obj, "metadata": {**obj["metadata"], "uid": f"uid-{name}"}}, fresh=True)
    await server.start()
    config = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server.url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "it", "user": {"token": server.token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    try:
        yield file
    finally:
        await server.close()


async def measure(nodes: int, claims: int, pods: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        manifests = Path(folder) / "workload.yaml"
        manifests.write_text(yaml.safe_dump_all(_workload(pods)))
        async with _serving(Path(folder), objects(nodes, claims)) as kubeconfig:
            run = await _measured(["explain", "pod/train", "--kubeconfig", str(kubeconfig)])
            print(f"explain, {nodes} nodes of {_PER_NODE} devices, {claims} claims: {run}")
        hosts = ["--host", f"nvlink-server={nodes}", "--driver", "drivers/gpu_example"]
        text = manifests.read_text().replace("deviceClassName: gpu\n", "deviceClassName: gpu.example.com\n")
        manifests.write_text(text)
        run = await _measured(["simulate", "-f", str(manifests), *hosts])
        print(f"simulate, {nodes} nodes of {_PER_NODE} devices, {pods} pods: {run}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--claims", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    args = parser.parse_args()
    asyncio.run(measure(args.nodes, args.claims, args.pods))


if __name__ == "__main__":
    main()
