"""``dra simulate``:

the local scheduler places the same pods on the same nodes, and a described cluster has the slices that plugins publish.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
import yaml

from dra_devkit.commands.described_cluster import HostKind, allocatable, classes_of, cluster_of
from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing.node import node_with
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import Driver, load_driver
from dra_tools import simulate, take
from gpu_example.driver import Gpu
from mig_example.driver import Mig
from tests.helpers.objects import claim_spec, device_class, pod, slice_of, template
from tests.tools.tree import ROOT


def random_cluster(draw: random.Random) -> tuple[list[JSON], list[JSON]]:
    """Returns a cluster and the pods to create, one after the other, with one to three devices each."""
    nodes: list[JSON] = []
    for i in range(draw.randint(2, 5)):
        devices = [{"name": f"d{k}", "attributes": {"numa": {"int": k % 2}}} for k in range(draw.randint(1, 5))]
        allocatable = {"cpu": str(draw.randint(2, 6)), "memory": "16Gi", "pods": "110"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": {"zone": f"z{i % 2}"}}}
        nodes += [{**node, "status": {"allocatable": allocatable, "capacity": allocatable}}, slice_of(f"n{i}", devices)]
    templates = [template(f"t{n}", claim_spec(count=n)) for n in (1, 2, 3)]
    templates[1]["spec"]["spec"]["devices"]["constraints"] = [{"matchAttribute": "toy.example.com/numa"}]
    pods = []
    for i in range(draw.randint(4, 12)):
        pod_object = pod(f"p{i:02}", templates=[f"t{draw.randint(1, 3)}"])
        if draw.random() < 0.3:
            pod_object["spec"]["nodeSelector"] = {"zone": f"z{draw.randint(0, 1)}"}
        pod_object["spec"]["containers"][0]["resources"]["requests"] = {"cpu": str(draw.randint(1, 2))}
        pods.append(pod_object)
    return [*nodes, device_class(), *templates], pods


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("uses_node", [False, True])
async def test_the_scheduler_places_the_pods_as_simulated(seed: int, uses_node: bool) -> None:
    objects, pods = random_cluster(random.Random(seed))
    for device in (d for o in objects for d in o.get("spec", {}).get("devices") or () if uses_node):
        device["nodeAllocatableResources"] = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
    features = Features.of("1.37", {"DRANodeAllocatableResources": uses_node})
    async with LocalCluster([], features=features) as cluster:
        await cluster.apply(*objects)

        async def taints_are_removed() -> bool:
            nodes = (await cluster.client.call("GET", "/api/v1/nodes"))["items"]
            return not any(n["spec"].get("taints") for n in nodes)

        await cluster.wait("nodes without taints", taints_are_removed)
        found = simulate(await take(cluster.client, "default"), pods)
        for pod_object in pods:
            await cluster.apply(pod_object)
            name = pod_object["metadata"]["name"]

            async def decided(name: str = name) -> bool:
                stored = await cluster.client.call("GET", f"/api/v1/namespaces/default/pods/{name}")
                return bool(
                    stored["spec"].get("nodeName")
                    or any(c["type"] == "PodScheduled" for c in stored["status"].get("conditions") or [])
                )

            await cluster.wait(f"a decision about {name}", decided)
        real = await placed(cluster)
    assert {p.pod.partition("/")[2]: (p.node, p.devices) for f in found.workloads for p in f.placed} == real


async def placed(cluster: LocalCluster) -> dict[str, tuple[str, tuple[str, ...]]]:
    snapshot = await take(cluster.client)
    devices: dict[str, list[str]] = {}
    for claim in snapshot.claims:
        for reserved in (claim.get("status") or {}).get("reservedFor") or []:
            results = claim["status"]["allocation"]["devices"]["results"]
            devices.setdefault(reserved["name"], []).extend(
                f"{r['request']}: {r['driver']}/{r['pool']}/{r['device']}" for r in results
            )
    nodes = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in snapshot.pods}
    return {name: (node, tuple(devices[name])) for name, node in nodes.items() if node}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("driver", "folder"), [(Gpu, "gpu_example"), (Mig, "mig_example")])
async def test_a_described_cluster_has_the_slices_that_plugins_publish(driver: type, folder: str) -> None:
    hosts = sorted((ROOT / "drivers" / folder).glob("hosts/*.yaml"))
    host = str(hosts[0]) if hosts else "nvlink-server"
    async with node_with(driver, host=host) as node:
        real = [s["spec"] for s in node.cluster.slices(driver.name)]
        name = next(iter(node.cluster.nodes))
    kind = HostKind(host, "x", 1)
    built, _ = await asyncio.to_thread(
        cluster_of, [kind], load_drivers(ROOT / "drivers" / folder), Settings(), allocatable(""), lambda text: None
    )
    text = json.dumps([o["spec"] for o in built if o["kind"] == "ResourceSlice"]).replace('"x-1"', f'"{name}"')
    assert _timeless(json.loads(text)) == _timeless(real)
    assert {o["kind"] for o in built} == {"Node", "ResourceSlice", "DeviceClass"}


def load_drivers(folder: Path) -> dict[str, type[Driver]]:
    return {str(folder): load_driver(str(folder))}


def _timeless(specs: list[JSON]) -> list[str]:
    for spec in specs:
        spec["pool"]["generation"] = 1
        for device in spec.get("devices") or []:
            for attribute in (device.get("attributes") or {}).values():
                attribute.pop("string", None)  # strings may contain the node's name or random serial numbers
    return sorted(json.dumps(s, sort_keys=True) for s in specs)


def manifest(tmp_path: Path, replicas: int, count: int = 1) -> str:
    inner = {
        "containers": [{"name": "main", "image": "x"}],
        "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}],
    }
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": count}}]
    objects = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "w"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "w"}},
                "template": {"metadata": {"labels": {"app": "w"}}, "spec": inner},
            },
        },
    ]
    file = tmp_path / "manifests" / "w.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump_all(objects))
    return str(file.parent)


HOSTS = ["--host", "nvlink-server=2", "--host", "virtual-machine", "--driver", str(ROOT / "drivers/gpu_example")]


def test_simulate_fills_a_fleet_of_described_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", manifest(tmp_path, 5, 4), *HOSTS, "--fill"]) == 0
    output = capsys.readouterr().out
    assert "Deployment default/w   5      5        1" in output
    assert "3 nodes; 24 devices; afterwards 4 free, 20 held" in output
    assert "--allocatable" in output
    assert (
        " ".join(output.split()).count("no further pod of Deployment default/w fits: too few devices for request ") == 1
    )
    assert len(output.splitlines()) <= 6, output  # no explanation of pods that the manifests do not contain


def test_simulate_lists_nodes_in_numerical_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ["--host", "nvlink-server=11", *HOSTS[4:]]
    assert main(["simulate", "-f", manifest(tmp_path, 23, 4), *hosts]) == 1
    output = capsys.readouterr().out
    assert "nvlink-server-1 (2), nvlink-server-2 (2), nvlink-server-3 (2) and 8 more" in output
    assert "11 nodes: nvlink-server-1, nvlink-server-2, nvlink-server-3 and 8 more" in output


def test_simulate_explains_a_pod_that_does_not_fit_and_exits_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-f", manifest(tmp_path, 7, 4), *HOSTS, "-o", "json"]) == 1
    [fit] = json.loads(capsys.readouterr().out)["workloads"]
    assert (fit["pods"], len(fit["placed"]), fit["stopped"]["state"]) == (7, 6, "waits")


def test_simulate_counts_the_allocatable_resources_of_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(manifest(tmp_path, 3)) / "w.yaml"
    file.write_text(file.read_text().replace("image: x", "image: x\n        resources: {requests: {cpu: 3}}"))
    assert main(["simulate", "-f", str(file), *HOSTS, "--allocatable", "cpu=2,pods=5"]) == 1
    assert "too little cpu" in capsys.readouterr().out


def test_simulate_shows_its_progress_on_a_terminal_and_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["simulate", "-f", manifest(tmp_path, 5), *HOSTS]) == 0
    seen = capsys.readouterr().err
    assert "devices of node 3 of 3" in seen
    assert "placing pods: 5 of 5" in seen
    assert seen.split("\r")[-1] == ""
    assert not seen.split("\r")[-2].strip()


async def test_simulate_counts_the_slices_and_pods_of_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalCluster() as cluster:
        await cluster.apply(device_class("gpu.example.com"), slice_of("node-1", ["d0", "d1", "d2"]))
        words = ["simulate", "--kubeconfig", str(cluster.kubeconfig), "-f", manifest(tmp_path, 2), "--fill"]
        assert await asyncio.to_thread(main, words) == 0
    assert "Deployment default/w   2      2        1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "nvlink-server=x", "--driver", "drivers/gpu_example"], "--host nvlink-server=x: write HOST=NUMBER"),
        (["--host", "nvlink-server=2"], "use --host and --driver together"),
        (["--host", "no-such=2", "--driver", "drivers/gpu_example"], "neither a file nor one of"),
        (["--host", "nvlink-server", "--driver", "drivers/none.py"], "drivers/none.py is not a file"),
        (
            ["--host", "nvlink-server", "--driver", "drivers/gpu_example", "--allocatable", "cpu"],
            "--allocatable cpu: write NAME=QUANTITY",
        ),
        (["--host", "nvlink-server", "--driver", "drivers/gpu_example", "--kubeconfig", "x"], "not both"),
        (
            ["-f", "/nowhere.yaml", "--host", "nvlink-server", "--driver", "drivers/gpu_example"],
            "/nowhere.yaml: No such file",
        ),
    ],
)
def test_invalid_arguments_are_refused_with_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-f", manifest(tmp_path, 1), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "target", ["", "/src/gpu_example", "/src/gpu_example/driver.py", "/src/gpu_example/driver.py:Gpu"]
)
def test_classes_of_finds_the_classes_for_each_form_of_the_driver_argument(target: str) -> None:
    found = classes_of(f"{ROOT / 'drivers/gpu_example'}{target}")
    assert [c["metadata"]["name"] for c in found] == ["gpu.example.com"]


def test_simulate_loads_a_driver_once(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        "from pathlib import Path\nfrom dra_kubeletplugin import Device, Driver\n"
        f"with Path({str(tmp_path / 'loads')!r}).open('a') as loads: print('loaded', file=loads)\n"
        "class Acme(Driver):\n    name = 'gpu.example.com'\n"
        "    def devices(self):\n        return [Device('acme-0')]\n"
        "    def prepare(self, claim):\n        return []\n"
    )
    main(["simulate", "-f", manifest(tmp_path, 1), "--host", "nvlink-server", "--driver", str(driver)])
    assert (tmp_path / "loads").read_text() == "loaded\n"


def test_simulate_names_the_shared_steps_that_it_does_not_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step without arguments has one state, so two claims of a card cannot contradict each other."""
    driver = tmp_path / "driver.py"
    text = (
        "from dra_kubeletplugin import Device, Driver\n"
        "class Acme(Driver):\n    name = 'gpu.example.com'\n"
        "    def devices(self):\n        return [Device('acme-0')]\n"
        "    def prepare(self, claim):\n        return []\n"
        "    def setup_power(self, card):\n        pass\n"
        "    def teardown_power(self, card):\n        pass\n"
    )
    words = ["simulate", "-f", manifest(tmp_path, 1), "--host", "nvlink-server", "--driver", str(driver)]
    driver.write_text(text)
    main(words)
    shown = capsys.readouterr().out
    assert "shared steps" not in shown and "1 node; " in shown
    mode = (
        "    def setup_mode(self, card, mode):\n        pass\n    def teardown_mode(self, card, mode):\n        pass\n"
    )
    driver.write_text(text + mode)
    main(words)
    assert "shared steps are not simulated (mode): if devices do not show the state" in capsys.readouterr().out


# --- manifests that no API server accepts -------------------------------------------------------------


def _deployment(**spec: object) -> JSON:
    template = {"metadata": {"labels": {"app": "b"}}, "spec": {"containers": [{"name": "m", "image": "x"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "w"},
        "spec": {"template": template, **spec},
    }


def _derived(field: str) -> JSON:
    derived = [{"name": "example.com/numa", field: "device.driver"}]
    spec = claim_spec(device_class="gpu.example.com")
    spec["devices"]["requests"][0]["exactly"]["derivedAttributes"] = derived
    spec["devices"]["constraints"] = [{"matchAttribute": "example.com/numa"}]
    return template("t", spec)


INVALID = {
    "labels": (_deployment(selector={"matchLabels": {"app": "a"}}), "`selector` does not match template `labels`"),
    "no selector": (_deployment(), "spec.selector: Required value"),
    "restart policy": (
        {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": {"spec": {"restartPolicy": "Always", "containers": [{"name": "m", "image": "x"}]}}},
        },
        'spec.template.spec.restartPolicy: Unsupported value: "Always"',
    ),
    "unknown field": (_derived("cel"), "derivedAttributes[0].cel: unknown field"),
}  # fmt: skip


def _simulate(path: Path, *manifests: JSON) -> int:
    path.write_text(yaml.safe_dump_all(manifests))
    return main(
        ["simulate", "-f", str(path), "--host", "nvlink-server=1", "--driver", str(ROOT / "drivers/gpu_example")]
    )


@pytest.mark.parametrize("uid", ["", "u"])
@pytest.mark.parametrize("case", INVALID)
def test_a_manifest_that_validate_calls_wrong_in_each_release_is_an_error(
    case: str, uid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, why = INVALID[case]
    manifest = {**manifest, "metadata": {**manifest["metadata"], **({"uid": uid} if uid else {})}}
    assert _simulate(tmp_path / "all.yaml", manifest, pod("p")) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"all\.yaml:\d+: ", printed.err)
    assert why in printed.err
    assert main(["validate", str(tmp_path / "all.yaml")]) == 1


def test_a_manifest_that_a_later_release_accepts_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _simulate(tmp_path / "all.yaml", _derived("expression"), pod("p", templates=["t"])) == 0
    printed = capsys.readouterr()
    assert "it is valid in Kubernetes 1.37 with the feature gate DRADerivedAttributes" in printed.err
    assert "not evaluated" not in printed.out
